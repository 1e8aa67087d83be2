"""Charsets: every character as browsers read it, wherever a page says its encoding, and where it does not."""

import hashlib
import re

import pytest

from webtext_prep.text.decoding import decode
from webtext_prep.text.encodings import codec_for

# SHA-256 (12 digits) of what the decoders of the standard make of all bytes, or of all pairs of a byte from 80 on and
# any other, with a newline after each. Compared character by character with TextDecoder of Chromium 156.0.8078.108,
# each sequence alone, and with @exodus/bytes 1.16.0: equal, but for Big5's 8862, 8864, 88A3 and 88A5 in Chromium.
# Node 20's TextDecoder is no measure: its ICU reads KOI8-U's AE as a line, as Python does.
DIGESTS = {
    "ibm866": "e4d6ff5ca5ad", "iso-8859-2": "f06000761c8b", "iso-8859-3": "202a1b363622",
    "iso-8859-4": "f7076eceae60", "iso-8859-5": "93b826201406", "iso-8859-6": "7bd8ab9b93da",
    "iso-8859-7": "6990b4f2c0f4", "iso-8859-8": "3fece254a648", "iso-8859-10": "4f9e6ea68a80",
    "iso-8859-13": "e0dc2e83c460", "iso-8859-14": "cc0467a122c6", "iso-8859-15": "02da73e6cb68",
    "iso-8859-16": "1695e6848a2f", "koi8-r": "4864274e1181", "koi8-u": "0fdfdda8e926", "macintosh": "07da6af6067c",
    "windows-874": "17408160a539", "windows-1250": "01dd09bae2d2", "windows-1251": "64bc96a197c7",
    "windows-1252": "d486335e5257", "windows-1253": "9e4c70ccbbd0", "windows-1254": "390edd6fb037",
    "windows-1255": "eb0725777360", "windows-1256": "5526d72d1fce", "windows-1257": "6df262bb978f",
    "windows-1258": "4744ca2fc1f4", "x-mac-cyrillic": "ce302a812a98", "gbk": "573e34f30d68",
    "gb18030": "3ff0ecd3f1ad", "big5": "708b047dd842", "euc-jp": "6bf4bf3f4d46", "iso-2022-jp": "ce998fec6428",
    "shift_jis": "dc41c920ca79", "euc-kr": "a70cb0db6c6f",
}  # fmt: skip


def every_sequence(label: str) -> bytes:
    if label == "iso-2022-jp":
        pairs = [bytes((a, b)) for a in range(0x21, 0x7F) for b in range(0x21, 0x7F)]
        return b"".join(b"\x1b$B" + pair + b"\x1b(B\n" for pair in pairs)
    if label in ("gbk", "big5", "euc-jp", "euc-kr", "shift_jis"):
        pairs = [bytes((a, b)) for a in range(0x80, 0x100) for b in range(0x100)]
        more = [b"\x8f" + pair for pair in pairs[0x21 * 256 :] if pair[1] > 0xA0] if label == "euc-jp" else []
        return b"\n".join(pairs + more)
    if label == "gb18030":
        leads = [(a, b) for a in (0x81, 0x84, 0x90, 0xE3) for b in range(0x30, 0x3A)]
        trails = [(c, d) for c in range(0x81, 0xFF) for d in range(0x30, 0x3A)]
        return b"\n".join(bytes((*lead, *trail)) for lead in leads for trail in trails)
    return b"\n".join(bytes((byte,)) for byte in range(256))


@pytest.mark.parametrize("label", DIGESTS)
def test_every_character_is_the_one_of_the_standard(label):
    text = every_sequence(label).decode(codec_for(label), "replace")
    assert hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12] == DIGESTS[label]


@pytest.mark.parametrize(
    ("label", "data", "text"),
    [
        # What Python 3.11's own codecs lack or read otherwise
        ("euc-jp", b"\xad\xa1\xfc\xe2\xa1\xc1\xa1\xdd\x8f\xa2\xb7~", "①髙～－～~"),
        ("iso-2022-jp", b"\x1b$B-!!A\x1b(J\\~\x1b(I1\x1b(B~", "①～¥‾ｱ~"),
        ("gb2312", b"\x80\xa6\xd9\xa8\xbc\xfe\x59\xa3\xa0", "€︐ḿ龴\u3000"),
        ("gb18030", b"\x81\x35\xf4\x37\x84\x31\x82\x36", "\ue7c7︐"),
        ("koi8-u", b"\xae\xbe\xa4\xa6\xa7\xad", "ўЎєіїґ"),
        ("windows-1255", b"\xca\x81", "\u05ba\x81"),
        ("windows-874", b"\x81\xa1", "\x81ก"),
        ("big5", b"\xa3\xe1\xa1\x45\xa2\x41\xa1\xfe\x88\x62\xfa\x5f\xc6\xcf", "€‧∕／Ê̄倩廴"),
        # Wrong bytes: an ASCII byte stays, which a lead byte before it would else take with it
        ("euc-jp", b"\xa4<p>\x8f\xa1<", "\ufffd<p>\ufffd<"),
        ("shift_jis", b"\xa0\xfd\x81<\x81", "\ufffd\ufffd\ufffd<\ufffd"),
        ("gbk", b"\x81<\xff\x81\xff\x81\x30<\x81\x30\x81", "\ufffd<\ufffd\ufffd\ufffd0<\ufffd"),
        ("big5", b"\x81A\x81\x80\x80A", "\ufffdA\ufffd\ufffdA"),
        ("euc-kr", b"\xc9A\xc9\xff\xffA", "\ufffdA\ufffd\ufffdA"),
        ("iso-2022-jp", b"\x1b$B!\n0\x1b(B\x80\x1b\x1b(B\x1b(BA", "\ufffd\ufffd\ufffd\ufffd\ufffdA"),
    ],
)
def test_what_pythons_codecs_lack_is_read_as_browsers_do(label, data, text):
    assert data.decode(codec_for(label), "replace") == text


def test_the_codecs_are_whole_ones():
    for label in DIGESTS:
        assert "Aé".encode(codec_for(label), "ignore").startswith(b"A")
        assert b"AB".decode(codec_for(label)) == "AB"
    for label, data in [("euc-jp", b"\xa4"), ("iso-2022-jp", b"\x80"), ("gbk", b"\xff")]:
        with pytest.raises(UnicodeDecodeError):
            data.decode(codec_for(label))


SAID = {
    "ru": "Комитет собрался во вторник вечером в ратуше и два часа говорил о мосте и о том, кто заплатит за ремонт. ",
    "uk": "Комітет зібрався у вівторок увечері в ратуші й дві години говорив про міст, його ціну та їхні ґанки. ",
    "be": "Камітэт сабраўся ў аўторак увечары ў ратушы і дзве гадзіны гаварыў пра мост і пра тое, хто заплаціць. ",
    "el": "Η επιτροπή συνεδρίασε την Τρίτη το βράδυ στο δημαρχείο και μίλησε δύο ώρες για τη γέφυρα και την τιμή της. ",
    "he": "הוועדה התכנסה ביום שלישי בערב בבית העירייה ודיברה שעתיים על הגשר, על מחירו ועל מי שישלם על התיקון. ",
    "ar": "اجتمعت اللجنة مساء الثلاثاء في دار البلدية وتحدثت لمدة ساعتين عن الجسر وعن ثمنه وعمن سيدفع تكاليف الإصلاح. ",
    "th": "คณะกรรมการประชุมกันในเย็นวันอังคารที่ศาลากลางและพูดคุยกันสองชั่วโมงเกี่ยวกับสะพานและราคาของมัน ",
    "tr": "Komisyon salı akşamı belediye binasında toplandı ve iki saat boyunca köprüyü ve fiyatını konuştu. ",
    "pl": "Komisja zebrała się we wtorek wieczorem w ratuszu i przez dwie godziny mówiła o moście i żółci. ",
    "cs": "Výbor se sešel v úterý večer na radnici a dvě hodiny hovořil o mostu, jeho ceně a příliš. ",
    "hu": "A bizottság kedden este ült össze a városházán, és két órán át beszélt a hídról, őszintén. ",
    "fr": "Le comité s’est réuni mardi soir à la mairie et a parlé deux heures du pont, de son prix et là-bas. ",
    "ko": "위원회는 화요일 저녁 시청에서 모여 두 시간 동안 다리와 그 가격, 누가 수리비를 내야 하는지 이야기했다. ",
    "ja": "委員会は火曜日の夜に市役所で集まり、橋とその価格、そして誰が修理代を払うべきかについて二時間話し合った。",
    "zh": "委员会星期二晚上在市政厅开会，花了两个小时讨论那座桥、它的价格以及谁应该付修理费。",
    "tw": "委員會星期二晚上在市政廳開會，花了兩個小時討論那座橋、它的價格以及誰應該付修理費。",
}
ENCODINGS = [
    ("ru", "windows-1251"), ("ru", "koi8-r"), ("ru", "iso-8859-5"), ("ru", "ibm866"), ("uk", "windows-1251"),
    ("uk", "koi8-u"), ("be", "windows-1251"), ("el", "windows-1253"), ("el", "iso-8859-7"), ("he", "windows-1255"),
    ("ar", "windows-1256"), ("th", "windows-874"), ("tr", "windows-1254"), ("pl", "iso-8859-2"),
    ("pl", "windows-1250"), ("cs", "iso-8859-2"), ("hu", "windows-1250"), ("fr", "windows-1252"), ("ko", "euc-kr"),
    ("ja", "shift_jis"), ("ja", "euc-jp"), ("ja", "iso-2022-jp"), ("zh", "gbk"), ("zh", "gb18030"), ("tw", "big5"),
]  # fmt: skip
OTHER = "windows-1257"
WAYS = {
    "undeclared": "<title>{text}</title>",
    "early": "<meta charset={label}><title>{text}</title>",
    "in http-equiv": "<meta http-equiv=Content-Type content='text/html; charset={label}'><title>{text}</title>",
    "behind 8 KiB": "<style>" + "p{{}}" * 2048 + "</style><meta charset={label}><title>{text}</title>",
    "behind another in a comment": f"<!-- <meta charset={OTHER}> --><meta charset={{label}}><title>{{text}}</title>",
    "behind another in a script": f"<script>'<meta charset={OTHER}>'</script><meta charset={{label}}>{{text}}",
    "behind one in an attribute": f"<meta name=a content='charset={OTHER}'><meta charset={{label}}>{{text}}",
    "behind an unknown one": "<meta charset=no-such><meta charset={label}><title>{text}</title>",
    "beside XML's": f"<?xml version='1.0' encoding='{OTHER}'?><meta charset={{label}}><title>{{text}}</title>",
    "in XML alone": "<?xml version='1.0' encoding='{label}'?><title>{text}</title>",
    "against a header": "<meta charset=" + OTHER + "><title>{text}</title>",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("language", "label"), ENCODINGS)
def test_a_page_is_read_wherever_it_says_its_encoding_or_not_at_all(language, label, way):
    """Undeclared, EUC-KR became U+FFFD, KOI8-U lost letters and ISO-2022-JP was left; declared behind 4,096 bytes, or
    behind another charset in a comment, none was right that is not found by its statistics."""
    text = SAID[language] * 5
    page = WAYS[way].format(label=label, text=f"{text}<p>{text}")
    header = label if way == "against a header" else None
    assert decode(page.encode(codec_for(label)), header) == page


@pytest.mark.parametrize("language", ["ja", "fr", "ru"])
def test_a_header_or_page_that_says_another_encoding_changes_nothing_of_iso_2022_jp(language):
    text = SAID["ja"].encode("iso2022_jp")
    assert decode(b"<meta charset=utf-8>" + text, "utf-8").endswith(SAID["ja"])
    assert decode(b"a \x1b[31m red", "utf-8") == "a \x1b[31m red"


def test_a_korean_page_with_a_few_damaged_bytes_is_korean():
    data = (SAID["ko"] * 20).encode("cp949")
    assert decode(data[:-2]).startswith(SAID["ko"])
    assert re.sub("\ufffd.?", "", decode(data[:101] + b"\xff" + data[101:])).count("위원회") == 20


def test_rare_syllables_of_windows_are_korean_and_quotes_before_letters_are_not():
    """Of Windows' extension of EUC-KR, whose second bytes are letters of ASCII."""
    text = f"{SAID['ko']} 똠방각하가 펲시를 "
    assert decode(text.encode("cp949")) == text
    english = "“So”, she said, “it’s what they’ve got, and it’s ours.” "
    assert decode(english.encode("cp1252")) == english
