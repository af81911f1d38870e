# Shared by the recipes: sourced, not run. Expects to be sourced from a script in scripts/.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"
plugin=$root/amlp_fairseq

# Prints a command the way a user could type it, then runs it.
run() { printf '+ %s\n' "$*" >&2; "$@"; }

systems="transformer ar sat ibdecoder ibdecoder-sa imdecoder"
systems+=" triton_lightconv triton_dynamicconv ibdecoder-dynamicconv aan_transformer ibdecoder-aan"

# system_task NAME: a system's task, for training; for decoding as well.
system_task() {
  case $1 in
    transformer|triton_*|aan_transformer) echo "--task translation" ;;
    ar) echo "--task translation_interleaved --num-directions 1" ;;
    sat) echo "--task translation_interleaved --num-directions 1 --words-per-direction 2" ;;
    ibdecoder|ibdecoder-dynamicconv|ibdecoder-aan) echo "--task translation_interleaved" ;;
    ibdecoder-sa) echo "--task translation_interleaved --words-per-direction 2" ;;
    imdecoder) echo "--task translation_interleaved --num-directions 4" ;;
    *) echo "unknown system '$1': choose one of $systems" >&2; return 1 ;;
  esac
}

# system_model NAME KERNELS: a system's architecture; KERNELS are the widths of its convolutions, one for each layer.
system_model() {
  case $1 in
    transformer|aan_transformer) echo "--arch $1" ;;
    triton_*) echo "--arch $1 --encoder-kernel-size-list $2 --decoder-kernel-size-list $2" ;;
    ibdecoder-dynamicconv)
      echo "--arch ibdecoder --decoder-self-attention-type dynamic_conv --decoder-kernel-size-list $2" ;;
    ibdecoder-aan) echo "--arch ibdecoder --decoder-self-attention-type average" ;;
    *) echo "--arch ibdecoder" ;;
  esac
}

# model_size D FFN LAYERS HEADS: flags that make encoder and decoder that large.
model_size() {
  local side
  for side in encoder decoder; do
    printf -- '--%s-embed-dim %s --%s-ffn-embed-dim %s --%s-layers %s --%s-attention-heads %s ' \
      $side "$1" $side "$2" $side "$3" $side "$4"
  done
}

# glibc returns every large tensor's memory to the kernel at once and faults it in again for the next one: keeping it
# makes training on a CPU about 1.4 times as fast (measured with the lite profile of multi30k.sh).
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
