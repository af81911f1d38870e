# amlp-fairseq without the checkout; anything behind the name of the image is a command of amlp-fairseq.
#
# For the CPU:
#   docker build -t amlp-fairseq .
#   docker run --rm --user "$(id -u)" -v "$PWD:/work" amlp-fairseq prepare embedded data
# For CUDA, with the compiler that Triton's kernels need when they start:
#   docker build -t amlp-fairseq:cuda --build-arg BASE=python:3.11.14-bookworm \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker run --rm --user "$(id -u)" --gpus all --shm-size 2g -v "$PWD:/work" amlp-fairseq:cuda \
#     train data/data-bin --row ibdecoder --scale paper --save-dir ibdecoder

ARG BASE=python:3.11.14-slim-bookworm

# The wheels are compiled here; of this stage nothing else is kept.
FROM ${BASE} AS wheels
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++=4:12.2.0-3 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN bash scripts/build_wheels.sh /wheels

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH=2.13.0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN pip install --index-url "${TORCH_INDEX}" "torch==${TORCH}"
COPY --from=wheels /wheels /wheels
# By the name of the file: whatever an index has under the name of the plugin is not meant.
# hadolint ignore=DL3013
RUN plugin=$(echo /wheels/amlp_fairseq-*.whl) \
 && pip install --find-links /wheels --only-binary fairseq-fixed "${plugin}[train]"
RUN useradd --uid 1000 amlp && mkdir /work && chown amlp /work
# Also under `docker run --user "$(id -u)"`, for files of one's own in /work: caches go to /tmp.
ENV HOME=/tmp USER=amlp
USER 1000
WORKDIR /work
ENTRYPOINT ["amlp-fairseq"]
CMD ["--help"]
