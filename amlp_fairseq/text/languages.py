"""Codes of languages: ISO 639-1 (``zh``), ISO 639-3 (``zho``), BCP 47 (``zh-Hant-TW``) and FLORES' (``zho_Hans``).

language("jpn_Jpan")         # Language(code='ja', script='Jpan')
writes_spaces("zh-CN")       # False
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: ISO 639-1, and equivalent codes of three letters: ISO 639-3, the bibliographic ones of ISO 639-2, and members of a
#: macrolanguage as FLORES names it; also obsolete codes of two letters.
_EQUIVALENT = (
    "aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg ar=ara=arb as=asm av=ava ay=aym=ayr az=aze=azj ba=bak be=bel "
    "bg=bul bi=bis bm=bam bn=ben bo=bod=tib br=bre bs=bos ca=cat ce=che ch=cha co=cos cr=cre cs=ces=cze cu=chu cv=chv "
    "cy=cym=wel da=dan de=deu=ger dv=div dz=dzo ee=ewe el=ell=gre en=eng eo=epo es=spa et=est=ekk eu=eus=baq "
    "fa=fas=per=pes ff=ful=fuv fi=fin fj=fij fo=fao fr=fra=fre fy=fry ga=gle gd=gla gl=glg gn=grn gu=guj gv=glv "
    "ha=hau he=heb=iw hi=hin ho=hmo hr=hrv ht=hat hu=hun hy=hye=arm hz=her ia=ina id=ind=in ie=ile ig=ibo ii=iii "
    "ik=ipk io=ido is=isl=ice it=ita iu=iku ja=jpn jv=jav ka=kat=geo kg=kon ki=kik kj=kua kk=kaz kl=kal km=khm kn=kan "
    "ko=kor kr=kau=knc ks=kas ku=kur=kmr kv=kom kw=cor ky=kir la=lat lb=ltz lg=lug li=lim ln=lin lo=lao lt=lit lu=lub "
    "lv=lav=lvs mg=mlg=plt mh=mah mi=mri=mao mk=mkd=mac ml=mal mn=mon=khk mr=mar ms=msa=may=zsm mt=mlt my=mya=bur "
    "na=nau nb=nob nd=nde ne=nep=npi ng=ndo nl=nld=dut nn=nno no=nor nr=nbl nv=nav ny=nya oc=oci oj=oji om=orm=gaz "
    "or=ori=ory os=oss pa=pan pi=pli pl=pol ps=pus=pbt pt=por qu=que=quy rm=roh rn=run ro=ron=rum ru=rus rw=kin "
    "sa=san sc=srd sd=snd se=sme sg=sag si=sin sk=slk=slo sl=slv sm=smo sn=sna so=som sq=sqi=alb=als sr=srp ss=ssw "
    "st=sot su=sun sv=swe sw=swa=swh ta=tam te=tel tg=tgk th=tha ti=tir tk=tuk tl=tgl tn=tsn to=ton tr=tur ts=tso "
    "tt=tat tw=twi ty=tah ug=uig uk=ukr ur=urd uz=uzb=uzn ve=ven vi=vie vo=vol wa=wln wo=wol xh=xho yi=yid=ydd=ji "
    "yo=yor za=zha zh=zho=chi=cmn zu=zul "
)
_SHORT = {code: short for short, *codes in (group.split("=") for group in _EQUIVALENT.split()) for code in codes}
#: The default script of languages that have no spaces between words.
_SCRIPTS = {
    **dict.fromkeys("zh yue wuu lzh gan hsn".split(), "Hani"),
    **{"ja": "Jpan", "th": "Thai", "km": "Khmr", "lo": "Laoo", "bo": "Tibt", "dz": "Tibt"},
    **dict.fromkeys("my shn mnw".split(), "Mymr"),
}
#: ISO 15924.
_WITHOUT_SPACES = frozenset("Hani Hans Hant Jpan Hira Kana Bopo Thai Khmr Laoo Mymr Tibt".split())


class Language(NamedTuple):
    """A language.

    Attributes:
        code: ISO 639-1 if it has one, otherwise the given code, in lower case.
        script: ISO 15924, from the code, or the default of a language without spaces between words; else empty.
    """

    code: str
    script: str


def language(code: str) -> Language:
    """The language of a code. Parts after the first one may be in any order; unknown codes are kept."""
    first, *rest = re.split("[-_]", code)
    short = _SHORT.get(first.lower(), first.lower())
    script = next((part.title() for part in rest if re.fullmatch("[A-Za-z]{4}", part)), _SCRIPTS.get(short, ""))
    return Language(short, script)


def writes_spaces(code: str) -> bool:
    """True if the language has spaces between words, as Korean has; False for Chinese, Japanese and Thai."""
    return language(code).script not in _WITHOUT_SPACES
