"""Pages that came with status 200 and say that there is none: soft 404s, and pages of parked domains.

The rules are few, and each asks for two signs: what the page calls itself, and that there is hardly any text. An
article about error 404, or about a domain that is for sale, has text, and stays; so does a short one whose title goes
on with what it is about (`410 Gone: what the status means`).
"""

from __future__ import annotations

import re

from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.urls.urls import domain_of

FEW_CHARACTERS = 600
"""Of main text: some hundred words. A text with more is a page, whatever its title says."""
HEADING_CHARACTERS = 80
"""Of the first line of a text, if that is to be a heading."""
TITLE_CHARACTERS = 300
"""Of a title that are looked at."""

_BETWEEN = re.compile(
    r"\s*[|–—·»«:/_｜：。！]\s*|\s+-+\s+(?!gone)|(?<=[^\W\0-\u024f])-(?=\w)|(?<=\w)-(?=[^\W\0-\u024f])|[.!]\s+"
)
"""Where parts of a title meet; a hyphen between words only next to a letter that is not Latin."""
_EDGES = " \t.!?,;:'\"()[]…“”。！，"
_WITHIN = str.maketrans({"’": "'", "(": None, ")": None, "（": None, "）": None})

_NOT_FOUND_IN_WORDS = (
    # English
    r"(?:(?:the|this|that|your)\s+)?(?:requested\s+)?(?:page|file(?:\s+or\s+directory)?|document|url|article|resource"
    r"|content|site|object)(?:\s+(?:that\s+)?(?:you(?:'ve|\s+have)?\s+requested"
    r"|you(?:'re|\s+are|\s+were)\s+(?:looking|searching)\s+for))?\s+(?:(?:(?:was|is|were|could)\s*(?:not|n't)|not)"
    r"\s+(?:be\s+)?found|can(?:'t|\s*not)\s+be\s+found|does(?:\s+not|n't)\s+(?:seem\s+to\s+)?exist"
    r"|no\s+longer\s+(?:exists|available)|is(?:\s+no\s+longer|\s+not|n't)\s+available|has\s+been\s+(?:removed|deleted))",
    r"(?:page|file|url)\s+(?:unavailable|missing)", r"not\s+found", r"nothing\s+(?:was\s+)?found", r"no\s+such\s+page",
    r"(?:we\s+)?(?:can(?:'t|\s*not)|could(?:n't|\s+not)|did(?:n't|\s+not)|(?:were|are)\s+unable\s+to)\s+find"
    r"\s+(?:that|this|the|your)\s+(?:requested\s+)?page(?:\s+(?:that\s+)?you(?:'ve|\s+have)?\s+requested"
    r"|\s+(?:that\s+)?you(?:'re|\s+are|\s+were)\s+(?:looking|searching)\s+for)?",
    # German, Dutch, Swedish, Danish, Norwegian
    r"(?:(?:die|diese)\s+)?(?:(?:von\s+ihnen\s+)?(?:angeforderte|gesuchte|gewünschte)\s+)?seite\s+(?:leider\s+)?"
    r"(?:(?:(?:wurde|konnte|kann|ist)\s+)?(?:leider\s+)?nicht\s+(?:gefunden(?:\s+werden)?|vorhanden|verfügbar)"
    r"|existiert\s+(?:leider\s+)?nicht(?:\s+mehr)?)",
    r"(?:(?:de|deze)\s+)?(?:(?:op)?gevraagde\s+)?pagina\s+(?:(?:is|werd|kan|kon)\s+)?(?:niet\s+(?:worden\s+)?gevonden"
    r"|bestaat\s+niet(?:\s+meer)?)",
    r"sidan(?:\s+du\s+(?:söker|letar\s+efter))?\s+(?:kunde\s+inte\s+hittas|hittades\s+inte|finns\s+inte(?:\s+längre)?)",
    r"siden(?:\s+du\s+leter\s+etter)?\s+(?:ble(?:v|)\s+ikke\s+fun(?:det|net)|kunne\s+ikke\s+fin(?:de|ne)s"
    r"|fin(?:de|ne)s\s+ikke|ikke\s+fun(?:det|net))", r"fant\s+ikke\s+siden",
    # French, Spanish, Portuguese, Italian, Romanian
    r"(?:(?:la|cette)\s+)?page\s+(?:(?:demandée|recherchée|que\s+vous\s+(?:re)?cherchez)\s+)?(?:est\s+)?(?:introuvable"
    r"|non\s+trouvée|n'existe\s+(?:pas|plus)|n'a\s+pas\s+(?:été\s+trouvée|pu\s+être\s+trouvée))",
    r"(?:(?:la|esta)\s+)?página\s+(?:(?:solicitada|que\s+(?:buscas?|estás?\s+buscando|solicitaste))\s+)?no\s+(?:(?:fue\s+"
    r"|ha\s+sido\s+)?encontrada|existe|se\s+(?:encuentra|ha\s+encontrado)|está\s+disponible)",
    r"no\s+(?:se\s+(?:encontró|ha\s+encontrado|pudo\s+encontrar)|(?:hemos\s+)?encontra(?:mos|do))\s+(?:la|esta)\s+página",
    r"(?:(?:a|esta)\s+)?página\s+(?:(?:solicitada|requisitada|que\s+(?:você\s+)?(?:procura|está\s+procurando))\s+)?não\s+"
    r"(?:(?:foi\s+)?(?:encontrada|localizada)|existe(?:\s+mais)?)",
    r"(?:(?:la|questa)\s+)?pagina\s+(?:(?:richiesta|cercata|che\s+(?:cerchi|stai\s+cercando))\s+)?(?:non\s+"
    r"(?:(?:è\s+)?(?:stata\s+)?trovata|esiste(?:\s+più)?|è\s+disponibile)|inesistente)",
    r"pagina\s+(?:(?:căutată|solicitată)\s+)?nu\s+(?:a\s+fost\s+găsită|există|poate\s+fi\s+găsită)",
    # Polish, Czech, Slovak, Hungarian, Finnish, Greek, Turkish
    r"nie\s+znaleziono\s+(?:(?:żądanej|podanej|takiej)\s+)?strony", r"(?:szukana\s+)?strona\s+nie\s+(?:istnieje"
    r"|(?:została\s+)?(?:znaleziona|odnaleziona))",
    r"(?:požadovan[áa]\s+)?stránk[au]\s+(?:ne(?:byla\s+|bola\s+)?(?:nalezena|nájdená)|neexistuje|sa\s+nenašla)",
    r"az?\s+(?:(?:keresett|kért)\s+)?oldal\s+nem\s+(?:található|létezik)",
    r"(?:hakemaasi\s+)?sivua\s+ei\s+(?:löydy|löytynyt|ole(?:\s+olemassa)?)", r"η\s+σελίδα\s+δεν\s+(?:βρέθηκε|υπάρχει)",
    r"(?:(?:aradığınız|istenen|bu)\s+)?sayfa\s+(?:bulunamad[ıi]|mevcut\s+değil)",
    # Russian, Ukrainian, Bulgarian
    r"(?:(?:запрашиваемая|запрошенная|данная|такая|эта)\s+(?:вами\s+)?)?страница\s+(?:не\s+(?:была\s+)?(?:найдена"
    r"|существует)|больше\s+не\s+существует|удалена|отсутствует)", r"такой\s+страницы\s+(?:не\s+существует|нет)",
    r"сторінк[ау]\s+не\s+(?:знайден[оа]|існує)", r"страницата\s+не\s+(?:(?:е|беше)\s+намерена|съществува)",
    # Indonesian and Malay, Vietnamese, Thai, Hindi
    r"halaman\s+(?:(?:ini|tersebut|yang\s+anda\s+cari)\s+)?tidak\s+(?:ditemukan|dijumpai|ada|tersedia)",
    r"không\s+tìm\s+thấy\s+trang(?:\s+(?:này|yêu\s+cầu|bạn\s+yêu\s+cầu))?", r"trang\s+(?:này\s+)?không\s+tồn\s+tại",
    r"ไม่พบหน้า(?:เว็บ)?(?:นี้|ที่(?:คุณ)?(?:ต้องการ|ค้นหา|กำลังค้นหา|ร้องขอ))?", r"(?:यह\s+)?(?:पृष्ठ|पेज)\s+नहीं\s+मिला",
    # Arabic, Persian, Hebrew
    r"(?:هذه\s+)?الصفحة\s+(?:(?:المطلوبة|التي\s+تبحث\s+عنها)\s+)?(?:غير\s+(?:موجودة|متوفرة|متاحة)|لم\s+يتم\s+العثور\s+عليها)",
    r"لم\s+يتم\s+العثور\s+على\s+الصفحة",
    r"صفحه\s*(?:ی\s+)?(?:مورد\s+نظر\s+)?(?:شما\s+)?(?:یافت\s+نشد|پیدا\s+نشد|وجود\s+ندارد)",
    r"ה?(?:דף|עמוד)\s+(?:(?:המבוקש|שחיפשת)\s+)?לא\s+(?:נמצא|קיים)",
    # Chinese, Japanese, Korean
    r"(?:[您你])?(?:[所要]?(?:访问|请求|找|寻找|查找|查看|浏览|訪問|請求|尋找|瀏覽)的)?(?:该|此|当前|當前|这个|這個)?"
    r"(?:页面|网页|頁面|網頁)(?:不存在|未找到|没有找到|沒有找到|没找到|找不到|无法找到|無法找到|已(?:被)?(?:删除|刪除))了?",
    r"(?:找不到|未找到|没有找到|沒有找到|没找到|无法找到|無法找到)(?:该|該|此|指定的?|您(?:要|请求|請求|访问|訪問)的)?"
    r"(?:页面|网页|頁面|網頁)",
    r"(?:(?:お探しの|(?:ご)?指定(?:された|の)|アクセスされた|該当(?:する|の)|この|その)?ページ)[はが]?"
    r"(?:(?:見|み)つかりません(?:でした)?|存在しません|ありません|削除されました)",
    r"(?:(?:요청하신|요청한|찾으시는|해당)\s*)?페이지(?:를|가)?\s*(?:찾을\s*수\s*없습니다|찾지\s*못했습니다|존재하지\s*않습니다)",
)  # fmt: skip
_STATUS = (
    r"(?:http\s*)?(?:(?:error|status|code|fehler|erreur|errore|erro|fout|fel|feil|błąd|chyba|hiba|hata|ошибка|помилка"
    r"|错误|錯誤|エラー|오류)[ #:,-]*)?"
)
_NOT_FOUND = re.compile(
    rf"""
    (?:(?:we(?:'re|\s+are)\s+)?sorry|(?:wh)?oops|uh[- ]?oh|error|很?抱歉|对不起|對不起|عذر[اً]*)?[,，،! ]*(?:but\s+)?
    (?:
        {_STATUS}404(?:\.0)?[ :,-]*(?:(?:http\s+)?error|page|错误|錯誤|エラー|오류|hatası|页面|頁面|ページ)?
        | (?:{_STATUS}404[ :,-]*)?(?:{"|".join(_NOT_FOUND_IN_WORDS)})(?:[ :,-]*(?:error\s+)?404)?
        | {_STATUS}410[ :,-]*(?:page\s+)?gone | (?:http\s*error|http|error)[ #:,-]*410 | 410\s+error
    )
    !*1?
    """,
    re.VERBOSE,
).fullmatch
"""What a part of a title says, or a heading."""
_IS_ABOUT = re.compile(r"(?:how|what|when|why|understanding|explaining|fixing|the\s+meaning\s+of)\b").match
"""How a part of a title begins that says what the page tells of it."""
_FOR_SALE = re.compile(
    r"""
    (?:the\s+|this\s+)?(?:domain(?:\s+name)?|website)\s+(?:[\w.-]+\s+)?(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+-?\s*(?:domain\s+)?(?:for\s+sale|parked|premium\s+domain)
    | (?:premium\s+)?domain(?:\s+name)?\s+(?:for\s+sale|parked)
    | (?:this|the)\s+(?:web\s*page|website|domain(?:\s+name)?)\s+is\s+parked.*
    | parked\s+(?:domain|page)(?:\s+name)?
    | buy\s+this\s+domain(?:\s+name)?
    """,
    re.VERBOSE,
).fullmatch
HEAD_BYTES = 1 << 17
"""Of HTML in which such a service is looked for: a page of a parked domain has some ten kilobytes."""
_SERVICES = (
    "sedoparking.com", "parkingcrew.net", "bodis.com", "parklogic.com", "skenzo.com", "parking.namesilo.com",
    "domainparking.ru", "parked-content.godaddy.com",
)  # fmt: skip
"""Hosts that show advertisements in place of a site; and so do the hosts below them."""
_OFFERS = ("hugedomains.com/domain_profile", "afternic.com/forsale", "dan.com/buy-domain")
"""Where a domain is offered for sale."""
_PARKING = re.compile(
    rf"""
    (?:/|\\/){{2}}(?:[\w-]+\.)*(?:(?:{"|".join(map(re.escape, _SERVICES))})(?![\w-]|\.\w)
        | {"|".join(map(re.escape, _OFFERS))})
    | <html\b[^<>]{{0,2000}}?\sdata-adblockkey\s*=
    | ["'(](?:(?:https?:)?//[\w.:-]+)?/parking-lander/
    """.encode(),
    re.VERBOSE | re.IGNORECASE,
).search
_SELLERS = frozenset({
    "afternic.com", "bodis.com", "brandbucket.com", "dan.com", "domainmarket.com", "hugedomains.com", "parkingcrew.net",
    "parklogic.com", "sedo.com", "sedoparking.com", "skenzo.com", "undeveloped.com",
})  # fmt: skip
"""Where parked domains redirect to."""


def _parts(title: str) -> list[str]:
    """The whole of a title, and what stands between its separators: one is often the name of the site."""
    plain = " ".join(title.lower().translate(_WITHIN).split())
    return [part.strip(_EDGES) for part in (plain, *_BETWEEN.split(plain))]


def gone_outcome(url: str, final_url: str | None, title: str, text: str, html: bytes) -> str | None:
    """`soft_404` or `parked` if a page says that there is none, else None.

    Args:
        url: by which it was asked for.
        final_url: where redirects led, or None.
        title: of the page.
        text: its main text, as extracted.
        html: the page.
    """
    if final_url is not None and (seller := domain_of(final_url)) in _SELLERS and seller != domain_of(url):
        return PageOutcome.PARKED
    if len(text) > FEW_CHARACTERS:
        return None
    heading = text.partition("\n")[0]
    said = [_parts(title[:TITLE_CHARACTERS]), _parts(heading) if len(heading) <= HEADING_CHARACTERS else []]
    if any(any(map(_NOT_FOUND, parts)) and not any(map(_IS_ABOUT, parts)) for parts in said):
        return PageOutcome.SOFT_404
    if any(any(map(_FOR_SALE, parts)) for parts in said) or _PARKING(html[:HEAD_BYTES]):
        return PageOutcome.PARKED
    return None
