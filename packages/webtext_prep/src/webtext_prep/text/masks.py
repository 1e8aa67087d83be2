"""Placeholders for what should not be published: e-mail addresses, and public IP addresses.

Placeholders are addresses that are reserved for documentation: the domain example.com (RFC 2606), 192.0.2.1 (RFC 5737)
and 2001:db8::1 (RFC 3849). They look like what they stand for, belong to nobody, and are left alone when they are met
again, as are all others that are reserved, and private addresses.

Texts in scripts without spaces run on where an address ends: there an address is what is ASCII, and ends with a
top-level domain. A text is searched closely only where it has a sign for "at", two numbers in a row between dots, or
colons as in an address. All that is looked at around an address is bounded, so that the time grows with the text.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable

from webtext_prep.urls.urls import top_level_domains

EMAIL, IPV4, IPV6 = "user@example.com", "192.0.2.1", "2001:db8::1"
"""What stands in the place of addresses."""

# E-mail addresses

_MARKS = r"\u0300-\u036f\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e31-\u0e4e\u0eb1-\u0ece"
"""Accents and vowel signs, which Python takes for no letters."""
_LABEL = rf"[^\W_](?:[\w{_MARKS}-]{{0,61}}[^\W_]|[{_MARKS}])?"
_DOMAIN = rf"((?:{_LABEL}\.)+{_LABEL})"
_AT = re.compile(rf"@{_DOMAIN}")
_ANY_AT = re.compile(rf"(?:[@\uff20\ufe6b]|%40){_DOMAIN}")
"""Full-width, small and percent-encoded signs, too."""

_LATIN = re.compile(
    r"[0-9A-Za-z%+'.&_\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u1e00-\u1eff-]+"
)
"""A local part, backwards as the next ones; of the characters that are in use."""
_SPACED = re.compile(
    r"[0-9A-Za-z%+'.&_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u037d\u037f-\u0386\u0388-\u052f\u0531-\u0556"
    r"\u0561-\u0587\u0591-\u05bd\u05d0-\u05ea\u0620-\u065f\u066e-\u06d3\u06d5-\u06ff\u0900-\u0963\u0966-\u0dff"
    r"\u10d0-\u10ff\u1200-\u135a\u1e00-\u1fff-]+"
)
"""A local part in scripts that part words by spaces: Latin, Greek, Cyrillic, Hebrew, Arabic, those of India, ..."""
_USUAL_CHARACTERS, _LOCAL_CHARACTERS = 65, 255
"""More than RFC 5321, section 4.5.3.1, allows of a local part, and of an address; what is longer is none."""
_NAMES = re.compile(r"\{\s*[\w.+%'-]+(?:\s*[,;|/]\s*[\w.+%'-]+)+\s*\\?\}")
"""Several people at one place, as papers have it."""
_ESCAPE = re.compile(r"u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrtbf](?=.)")
"""What follows a backslash in JSON and in code, and is no beginning of a name."""
_PERCENT = re.compile(r".*%(?!2[BbDdEe]|5[Ff]|27)[0-9A-Fa-f]{2}")
_FIRST = re.compile(r"/([\w+-]{1,64})(?=[\s<>(\[\"',;:]|\Z)")
"""The first half, backwards, of `first/last`."""
_NO_FIRST = frozenset(("w", "c", "mail", "email", "e-mail"))
_BOUNCED = re.compile(r"=[\w.-]*(?:\+[\w.-]*)+")
"""The half, backwards, that stands before the receiver's domain where mail comes back: `bounce+jane=site.org`."""

_TOP = re.compile(
    r"[a-z]{2,24}(?=[A-Z])|"
    r"(?:[Xx][Nn]--[0-9A-Za-z]+|[A-Za-z]{2,24})(?=[^\x00-\x7f]|-|[0-9]{1,4}(?![0-9A-Za-z_-])|_+(?![0-9A-Za-z_-]))"
)
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff]|[\U00020000-\U0003ffff]")
"""Thai, Lao, Korean, Chinese and Japanese letters: the next word, or a particle, may follow without a space."""
_USUAL_TOPS = frozenset(("com", "org", "net", "edu", "gov", "mil", "uk", "de", "fr", "jp", "cn", "ru"))
_NAMES_IN_CODE = """
    as at call cat data date do dot ge gt id int is link lt map ma mm mv my name ne new next one open place play prod
    read run save search select show storage to
"""
_CALLED = frozenset(_NAMES_IN_CODE.split())
"""Top-level domains that are names in code, too: `x@w.to(device)`."""
_NO_DOMAIN = re.compile(r"v?[0-9]+(?:\.[0-9]+)+\.|[0-9]+(?:\.[0-9]+)?x\.")
"""What `package@1.2.3.zip` and `icon@2x.ai` end with."""
_RESERVED = (".example.com", ".example.org", ".example.net")
_REPOSITORIES = frozenset(("git", "hg", "svn", "gitea", "gitlab", "forgejo", "gitolite", "aur"))
_REPOSITORY = re.compile(r":(?:~|/\w|[\w./~-]{1,100}\.git\b)")
_MAILS = ("mailto", "mail", "email", "sip", "sips", "xmpp", "acct")

# IP addresses

_DOTTED = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")
_IPV4 = re.compile(
    r"(?<![0-9A-Za-z.])(?<![0-9A-Za-z]_)((?:[0-9]{1,3}\.){3}[0-9]{1,3})"
    r"(?!_?[0-9A-Za-z]|\.[0-9A-Za-z_]|-(?!(?:[0-9]{1,3}\.){3}[0-9])[0-9A-Za-z])"
)
_SIGNS = r"[\s,;/&|()\u3001\uff0c\u2013\u2014-]"
_LISTED = rf"(?:{_SIGNS}{{0,3}}(?:dna|ro|ot)?{_SIGNS}{{0,3}}[0-9]{{1,5}}(?:\.[0-9]{{1,5}}){{1,4}}v?)"
_BEFORE = re.compile(
    rf"{_LISTED}{{0,3}}(?P<sign>[\s:=#(\"'>\uff1a\uff08-]{{0,8}})\.?"
    rf"(?P<word>(?:[^\W\d_]|[{_MARKS}])+)(?:\s(?P<earlier>[^\W\d_]+))?"
)
"""What stands before a number, backwards: other numbers, signs, and a word or two."""
_VERSIONS_AND_SECTIONS = """
    version versions ver v rev revision revisions release releases firmware build builds section sections subsection
    subsections subclause sec sect tab
    chapter chapters ch clause figure figures fig figs appendix paragraph theorem lemma
    equation eq step art kap ec oid oids patch bios jdk jre notes
    versión versiones versão versões versione versioni versio versionen wersja wersji wersje verze verzi verzia verzió
    versie sürüm sürümü versiunea версия версии версию версией версій версія версію верзија έκδοση abschnitt kapitel
    abbildung abb tabelle sección capítulo seção chapitre sezione capitolo rozdział hoofdstuk раздел раздела разделе
    глава главе пункт пункте п рис табл bản גרסה גרסת إصدار الإصدار نسخه نسخة संस्करण
"""
_NUMBERED = frozenset(_VERSIONS_AND_SECTIONS.split())
"""What numbers of four parts stand after that are no addresses."""
_RULES_AND_PRODUCTS = """
    rule rules no nr article articles table tables item kernel linux firefox chrome chromium safari opera android ios
    macos framework java php python mysql acrobat ubuntu
    debian
"""
_NUMBERED_DIRECTLY = frozenset(_RULES_AND_PRODUCTS.split())
"""The same where no sign stands between: `kernel: 8.8.8.8` is an address."""
_NUMBERED_ENDS = (
    *("version", "版本", "版本号", "版本號", "版本为", "版本為", "版本是", "版", "固件", "第", "见图", "如图", "见表"),
    *("如表", "見表", "バージョン", "ヴァージョン", "バージョンは", "ファームウェア", "버전", "버전은", "제"),
    *("เวอร์ชัน", "เวอร์ชั่น"),
)
_NUMBERED_BEFORE = (" version", " release", " firmware", " build", "版", "节", "節", "バージョン", "버전", " 버전")
"""What follows such numbers."""
_LINKS = frozenset(("is", "was", "number", "numbers", "num", "no", "nr"))
_PRODUCT = re.compile(r"/((?:[A-Za-z]*[a-z])?[A-Z]|lruc|tegw|xnign)(?![\w./:@-])")
"""Of a user agent, backwards: `Firefox/3.6.3.1`."""
_BETWEEN = re.compile(
    rf"(?>(?:{_SIGNS}|[0-9]+(?:\.[0-9]+)+|\b(?:and|or|to|through|until|und|oder|bis|et|ou|y|o|e|и|или)\b|[和或至到及とや])+)"
)
"""What stands between the numbers of a list."""
_SECTION = re.compile(r"\bsee(?: also)? \Z", re.IGNORECASE)
_TITLE = re.compile(r" [A-Z][a-z]")
"""What follows the number of a section: `see 2.1.3.4 Installation`."""
_DATE = re.compile(r"(?:[12][0-9]|3[01])\.1[0-2]\.[0-9]{2}\.[0-9]{2}")
_REQUIRED = ("\u00a7", "\u00a7 ", "<=", ">=", "~=", "~>", "<= ", ">= ", "~= ", "~> ", "^")
"""Signs before sections, and before versions that are asked for."""

_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = re.compile(
    r"(?<![0-9A-Za-z_.])(?<!::)(?:(?<!:)|(?<=[G-Zg-z]:)|(?<=[G-Zg-z][0-9A-Fa-f]:)|(?<=[G-Zg-z][0-9A-Fa-f]{2}:))"
    rf"[23][0-9A-Fa-f]{{3}}(?>(?::{_GROUP}){{0,7}})(?:::(?:{_GROUP}(?>(?::{_GROUP}){{0,6}}))?)?(?![0-9A-Za-z_]|:[0-9A-Fa-f:]|\.[0-9])"
)
"""All that is routed begins so: 2000::/3 (RFC 4291, section 2.4; IANA's registry of global unicast addresses)."""
_ZEROS = re.compile(r"::(?<=[0-9A-Fa-f]::)")
"""Zeros that are left out."""
_INNER_PARTS = 6
"""Of an address of version 6 that leaves no zeros out: the parts between two colons."""


def mask_emails(text: str) -> tuple[str, int]:
    """(text, number): with each e-mail address replaced."""
    if ("%" in text and "%40" in text) or "\uff20" in text or "\ufe6b" in text:
        signs = _ANY_AT
    elif "@" in text:
        signs = _AT
    else:
        return text, 0
    parts, end, number = [], 0, 0
    for found in signs.finditer(text):
        # Longer domains are not remembered: hostile ones would fill the memory.
        domain, at = _domain(found[1]) if found.end() - found.start() < 100 else _cut(found[1]), found.start()
        if not domain:
            continue
        behind = found.start(1) + len(domain)
        if at == end and number:
            end = behind  # jane@site.org@other.org
            continue
        start = _start_of_local(text, end, at)
        if start == at or _is_none(text, start, at, domain, behind, end):
            continue
        parts += [text[end:start], EMAIL]
        end = behind
        number += 1
    return "".join([*parts, text[end:]]), number


def _cut(found: str) -> str:
    """The part of `found` that is a domain, up to a top-level domain; "" if there is none, or if it is reserved."""
    tops = top_level_domains()
    labels = found.split(".", 128)
    if _NO_DOMAIN.match(found):
        return ""
    if not found.isascii():
        # jane@site.org请访问www.site.cn
        for number, label in enumerate(labels[1:], 2):
            top = _beginning(label, tops)
            if top.isascii() and top and _UNSPACED.match(label, len(top)):
                labels = [*labels[: number - 1], top]
                break
    for number in range(len(labels) - 1, 0, -1):
        label = labels[number]
        if label.lower() in tops:
            top = label
            if number + 1 < len(labels):
                # jane@site.org.Please write, but not x@w.name.shape
                after = labels[number + 1][0]
                if after.isascii() and not after.isupper() and top.lower() not in _USUAL_TOPS:
                    continue
            elif number > 1 and top.istitle() and (before := labels[number - 1]).islower() and before in tops:
                continue  # jane@site.org.It is
        else:
            top = _beginning(label, tops)
            if not top or (number + 1 < len(labels) and top not in _USUAL_TOPS and label[len(top)].isascii()):
                continue
        domain = ".".join([*labels[:number], top])
        low = domain.lower()
        is_usable = len(domain) <= 253 and not f".{low}".endswith(_RESERVED)
        return domain if is_usable else ""
    return ""


_domain = functools.lru_cache(maxsize=1 << 12)(_cut)


def _beginning(label: str, tops: frozenset[str]) -> str:
    """The top-level domain with which `label` begins, and after which other text follows; "" if there is none."""
    found = _TOP.match(label)
    if found is not None:
        top = found[0].lower()
        # jane@site.orgPhone, but not x@w.toDevice
        is_called = top in _CALLED and label[found.end()].isupper()
        return found[0] if top in tops and not is_called else ""
    if _UNSPACED.match(label):
        for size in range(min(len(label), 24), 1, -1):
            if label[:size] in tops:
                return label[:size]
    return ""


def _start_of_local(text: str, least: int, at: int) -> int:
    """Where the local part before `at` begins, `least` or later; `at` if there is none."""
    stop = at
    if stop > least and text[stop - 1] == "\\":
        stop -= 1
    if stop == least:
        return at
    last = text[stop - 1]
    if last == '"' or last == "}":
        start = _start_of_quoted(text, least, stop, last)
        return at if start < 0 else start
    before = text[max(least, stop - _USUAL_CHARACTERS) : stop][::-1]
    found = _LATIN.match(before)
    size = found.end() if found is not None else 0
    if size == _USUAL_CHARACTERS:
        before = text[max(least, stop - _LOCAL_CHARACTERS) : stop][::-1]
        found = _LATIN.match(before)
        size = found.end() if found is not None else 0
    if size < len(before) and not before[size].isascii():
        # иван1@: of another script if no Latin letter is in it.
        other = _SPACED.match(before)
        if other is not None and other.end() > size and not any(map(str.isalpha, before[:size])):
            size = other.end()
    if size == 0 or size == _LOCAL_CHARACTERS:
        return at
    if size < len(before):
        more = None
        if before[size] == "/":
            more = _FIRST.match(before, size)
            if more is not None and more[1][::-1].lower() in _NO_FIRST:
                more = None
        elif before[size] == "=" and "." in before[:size]:
            more = _BOUNCED.match(before, size)
        if more is not None and more.end() < _USUAL_CHARACTERS:
            size = more.end()
    name = before[:size][::-1]
    sign = before[size : size + 1]
    if "%" in name and (escaped := _PERCENT.match(name)) is not None:
        name = name[escaped.end() :]
    if "&" in name and sign and sign in "=?&":
        name = name.rpartition("&")[2]
    if sign == "\\" and (escaped := _ESCAPE.match(name)) is not None:
        name = name[escaped.end() :]
    begun = name
    name = name.lstrip("%+'.&_-")
    if not name or begun == "%s" or begun == "%d":
        return at
    start = stop - len(name)
    return start - 1 if begun[0] == "+" and name[0].isdigit() else start


def _start_of_quoted(text: str, least: int, stop: int, last: str) -> int:
    """Where `"quoted name"` or `{jane,bob}` begins that ends at `stop`; -1 if it is neither."""
    if last == '"':
        begin = text.rfind('"', max(least, stop - _USUAL_CHARACTERS), stop - 1)
        if begin < 0 or stop - begin < 3 or "\n" in text[begin:stop]:
            return -1
        return begin - 1 if text[stop - 2] == "\\" and begin > least and text[begin - 1] == "\\" else begin
    begin = text.rfind("{", max(least, stop - 400), stop)
    if begin < 0 or _NAMES.fullmatch(text, begin, stop) is None:
        return -1
    return begin - 1 if begin > least and text[begin - 1] == "\\" else begin


def _is_none(text: str, start: int, at: int, domain: str, behind: int, least: int) -> bool:
    """Whether what looks like an address is a repository, code, or the user of a URL."""
    after = text[behind : behind + 1]
    if after in (":", "/") and (text[start:at] in _REPOSITORIES or _REPOSITORY.match(text, behind)):
        return True
    # Before another @ it is no host: https://jane@site.org@proxy.org/
    slashes = text.rfind("://", max(least, start - _USUAL_CHARACTERS), start) if after != "@" else -1
    return (slashes >= 0 and _is_user(text, slashes, start, behind)) or _is_code(domain, text[start:at], after)


def _is_code(domain: str, name: str, after: str) -> bool:
    """Whether `@` multiplies matrices, or names an object; `after` is the character that follows."""
    first, _, rest = domain.partition(".")
    top = rest.rpartition(".")[2].lower()
    if top in _CALLED and (top == "data" or after in ("(", "[") or len(first) == len(name) == 1):
        return True
    return name in ("this", "super") or (first == "self" and top not in _USUAL_TOPS)


def _is_user(text: str, slashes: int, start: int, behind: int) -> bool:
    """Whether a local part is the user, or the password, of the URL that has `slashes`."""
    user = text[slashes + 3 : start]
    scheme = text[max(0, slashes - 8) : slashes].lower()
    if any(sign.isspace() or sign in "/?#\"'<>()[]," for sign in user) or scheme.endswith(_MAILS):
        return False
    if user:
        return ":" in user and not user.lower().startswith(tuple(f"{name}:" for name in _MAILS))
    # People write http: where they mean mailto:.
    return not scheme.endswith(("http", "https")) or (
        text[behind : behind + 1] == "/" and text[behind + 1 : behind + 2].isalnum()
    )


def mask_addresses(text: str) -> tuple[str, int]:
    """(text, number): with each public IP address replaced, of version 4 and 6."""
    number = last = 0
    is_numbered = False

    def placeholder_4(found: re.Match[str]) -> str:
        nonlocal number, last, is_numbered
        start, end = found.span()
        # The numbers of a list are of one kind.
        if last == 0 or start - last > 24 or not _BETWEEN.fullmatch(text[last:start]):
            is_numbered = _is_numbered(text, start, end)
        last = end
        if is_numbered or not _is_public(found[0]):
            return found[0]
        number += 1
        return IPV4

    def placeholder_6(found: re.Match[str]) -> str:
        nonlocal number
        if not _is_public(found[0]):
            return found[0]
        number += 1
        return IPV6

    if _DOTTED.search(text):
        text = _IPV4.sub(placeholder_4, text)
    if ":" in text and (_ZEROS.search(text) or sum(len(part) <= 4 for part in text.split(":")) >= _INNER_PARTS):
        text = _IPV6.sub(placeholder_6, text)
    return text, number


@functools.lru_cache(maxsize=1 << 12)
def _is_public(address: str) -> bool:
    """Whether it is an address, a public one, and can't be a date."""
    try:
        return ipaddress.ip_address(address).is_global and _DATE.fullmatch(address) is None
    except ValueError:
        return False


def _is_numbered(text: str, start: int, end: int) -> bool:
    """Whether the four numbers from `start` to `end` are a version, a section or the like."""
    before = text[max(0, start - 48) : start]
    backwards = before[::-1]
    if backwards.startswith("/"):
        return _PRODUCT.match(backwards) is not None
    words = _BEFORE.match(backwards)
    if words is not None:
        word = words["word"][::-1].lower()
        if word in _LINKS and words["earlier"]:
            word = words["earlier"][::-1].lower()
        if word in _NUMBERED or (word in _NUMBERED_DIRECTLY and not words["sign"].strip(" -")):
            return True
        if word.endswith(_NUMBERED_ENDS):
            return True
    if before.endswith(_REQUIRED) or text.startswith(_NUMBERED_BEFORE, end):
        return True
    return _TITLE.match(text, end) is not None and _SECTION.search(before) is not None


MASKS: dict[str, Callable[[str], tuple[str, int]]] = {"email": mask_emails, "ip": mask_addresses}
"""What `--mask` chooses from."""
