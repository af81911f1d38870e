"""Codes of languages, against tables made by hand from ISO 639, ISO 15924, BCP 47 and the list of FLORES-200."""

from __future__ import annotations

import pytest

from amlp_fairseq.text.languages import language, writes_spaces


@pytest.mark.parametrize(
    ("codes", "code", "script"),
    [
        ("zh zho chi cmn zh-CN zh_CN", "zh", "Hani"),
        ("zho_Hans zh-Hans-CN zh_hans", "zh", "Hans"),
        ("zho_Hant zh-Hant zh-hant-TW", "zh", "Hant"),
        ("ja jpn jpn_Jpan ja_XX ja-JP", "ja", "Jpan"),
        ("th tha tha_Thai", "th", "Thai"),
        ("my mya bur mya_Mymr my_MM", "my", "Mymr"),
        ("yue yue_Hani", "yue", "Hani"),
        ("ko kor ko-KR ko_KR", "ko", ""),
        ("kor_Hang ko-Hang", "ko", "Hang"),
        ("de deu ger DE de-DE de_DE", "de", ""),
        ("deu_Latn", "de", "Latn"),
        ("pt por pt-BR pt_XX", "pt", ""),
        ("arb_Arab", "ar", "Arab"),
        ("sr-Cyrl-RS", "sr", "Cyrl"),
        ("ilo", "ilo", ""),
        ("src", "src", ""),
    ],
)
def test_a_code_of_any_standard_names_the_language(codes: str, code: str, script: str) -> None:
    assert {language(each) for each in codes.split()} == {(code, script)}


def test_spaces_between_words() -> None:
    without = "zh zho_Hans yue_Hant ja jpn_Jpan th tha_Thai km khm_Khmr lo lao_Laoo my mya_Mymr bod_Tibt shn_Mymr"
    assert not any(map(writes_spaces, without.split()))
    spaced = "de en_XX kor_Hang ko vie_Latn hin_Deva pt-BR zh-Latn unknown"
    assert all(map(writes_spaces, spaced.split()))
