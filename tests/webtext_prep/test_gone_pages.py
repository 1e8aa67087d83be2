"""Soft 404s and parked domains: two signs each, so that no page with text is lost."""

import pytest

from webtext_prep.extraction.gone_pages import FEW_CHARACTERS, gone_outcome

LONG = "Some text of an article that goes on. " * 20
assert len(LONG) > FEW_CHARACTERS


def judged(title="", text="", html=b"", url="http://example.org/a", final_url=None):
    return gone_outcome(url, final_url, title, text, html)


NOT_THERE = """
404
404 Not Found
Error 404 (Not Found)
Error 404 (Not Found)!!1
Not Found (404)
HTTP 404
HTTP 404 - Page not found
HTTP Error 404.0 - Not Found
404 - File or directory not found.
404: Example
Oops! 404
Example | Page Not Found
Page not found – Example
Page Not Found - The Example Blog
Page not found - Guide to Rome
Page not found :(
Whoops, page not found
Not Found
Object not found!
The resource cannot be found.
410 Gone
Error 410
410 - Gone | Example
Nothing found - Blog
Nothing Found
No such page
The page you requested could not be found
The page you were looking for doesn't exist (404)
Sorry, we can’t find that page
We couldn't find that page
We couldn’t find the page you’re looking for.
We're sorry, but we can't find that page
Oops! That page can’t be found.
This page doesn't exist
Sorry, this page isn't available.
Uh oh. That page doesn’t exist
Page missing
Seite nicht gefunden
Die angeforderte Seite wurde nicht gefunden
Diese Seite existiert nicht
Fehler 404
Page introuvable
Cette page n’existe pas
La page que vous recherchez est introuvable
Page non trouvée - Exemple
Página no encontrada | Ejemplo
La página que buscas no existe
No se encontró la página
Página não encontrada
Erro 404
Pagina non trovata
La pagina richiesta non esiste
Pagina niet gevonden
Nie znaleziono strony
Strona nie została znaleziona
Страница не найдена
Ошибка 404
Сторінку не знайдено
Sayfa bulunamadı
Sidan kunde inte hittas
Siden blev ikke fundet
Fant ikke siden
Sivua ei löydy
Stránka nenalezena
Az oldal nem található
Pagina nu a fost găsită
Η σελίδα δεν βρέθηκε
Halaman tidak ditemukan
Không tìm thấy trang
ไม่พบหน้าที่คุณต้องการ
الصفحة غير موجودة
صفحه یافت نشد
הדף לא נמצא
पृष्ठ नहीं मिला
页面不存在
页面未找到
页面未找到_新闻网
页面不存在-新闻网
找不到页面
抱歉，您访问的页面不存在！
404错误
找不到網頁
お探しのページは見つかりませんでした
お探しのページは見つかりません。｜例
ページが見つかりません
指定されたページは存在しません
페이지를 찾을 수 없습니다
요청하신 페이지가 존재하지 않습니다.
"""
"""Titles of pages that are not there."""
THERE = """
Room 404
Lost and found
How to fix error 404 on your site
Why 404 pages matter
404 Not Found: what the status means
410 Gone: what the status means
410 Gone: How it differs from 404
Error 404 - why it appears
Page not found: how we designed ours
What is a 404 error?
404 ways to cook an egg
The best 404 pages of the year
410 gone missing after the flood
A guide to 404 errors
HTTP status codes 404 and 410
Flight LH-404
Highway 410
The 410 gone from our streets
The page that was not found for years
We couldn't find that page of history
We couldn't find a better pizza
Nothing found in the tomb
Nothing found at the crash site - The Example News
No such luck
Not found in nature
Interstate 404 opens
Found: the page you are looking for
Page missing from the diary is found
Cure not found
Water not found on the moon
Missing page of the codex is back
Object permanence
The resource curse
Die Seite der Anderen
Nicht gefunden, was ich suchte
Une page d'histoire
Introuvable depuis lundi
La página en blanco
No encontrada en su casa
Pagina uno
Страница любви
页面设计
页面未找到的原因
404页面设计
找不到工作
お探しのページの作り方
404エラーの原因
페이지 만들기
A book review
The domain of love is for sale by owner
Houses for sale
Domain names: a short history
"""
"""Titles of pages about something."""


def lines(text):
    return [pytest.param(line, id=str(number)) for number, line in enumerate(text.split("\n")[1:-1])]


@pytest.mark.parametrize("title", lines(NOT_THERE))
def test_a_page_that_says_it_is_not_there_and_nothing_else_is_a_soft_404(title):
    assert judged(title, "Go back to our home page, or search.") == "soft_404"
    assert judged("Example", f"{title}\nGo back to our home page.") == "soft_404"
    assert judged(title, LONG) is None


@pytest.mark.parametrize("title", ["", *lines(THERE)])
def test_short_pages_about_something_stay(title):
    assert judged(title, "A short note with a few words in it.") is None
    assert judged("Example", f"{title}\nA short note with a few words in it.") is None


@pytest.mark.parametrize(
    ("title", "html"),
    [
        ("example.org is for sale", b""),
        ("This domain is for sale!", b""),
        ("example.org | Domain for sale", b""),
        ("Buy this domain", b""),
        ("Parked Domain", b""),
        ("example.org", b"<script src='https://www.sedoparking.com/frmpark/'>"),
        ("example.org", b"<script src='//sedoparking.com'></script>"),
        ("example.org", b"<iframe src=https://d1.parkingcrew.net:443/x></iframe>"),
        ("example.org", b'<script>var at = "https:\\/\\/bodis.com\\/x"</script>'),
        ("example.org", b"<a href='https://DAN.com/buy-domain/example.org'>"),
        ("example.org", b"<a href='https://www.hugedomains.com/domain_profile.cfm?d=example.org'>"),
        ("example.org", b"<html data-adblockkey='MFwwDQYJ'>"),
        ("example.org", b"<html lang=en\ndata-adblockkey=MFwwDQYJ>"),
        ("example.org", b"<script>window.location='/parking-lander/'</script> <a href='/parking-lander/x'>"),
        ("example.org", b"<script src='https://example.org/parking-lander/x.js'>"),
    ],
)
def test_parked_domains_are_told_by_an_offer_or_a_service_and_hardly_any_text(title, html):
    assert judged(title, "Related searches", html) == "parked"
    assert judged(title, LONG, html) is None


@pytest.mark.parametrize(
    "html",
    [
        b"<script src='https://antibodis.com/x'></script>",
        b"<a href='http://jordan.com/buy-domain'>",
        b"<a href='https://dan.com/about'>",
        b"<a href='https://sedoparking.com.example.net/'>",
        b"<a href='https://not-sedoparking.com/'>",
        b"<img src='https://example.net/sedoparking.com/logo.png'>",
        b"<p>We left parkingcrew.net last year, and sedoparking.com before that.</p>",
        b'<pre>&lt;html data-adblockkey="x"&gt;</pre>',
        b"<p>The path is called /parking-lander/ there.</p>",
        b"<a href='https://myhugedomains.com/domain_profile.cfm'>",
        b"<a href='https://example.org/x/afternic.com/forsale'>",
    ],
)
def test_services_for_parked_domains_are_told_by_their_hosts(html):
    """They were looked for as a part of any word: antibodis.com was bodis.com."""
    assert judged("My notes", "A short note with a few words in it.", html) is None


def test_a_redirect_to_a_seller_of_domains_is_one_of_a_parked_domain_but_the_seller_has_pages():
    to = "https://www.hugedomains.com/domain_profile.cfm?d=example.org"
    assert judged("HugeDomains", LONG, url="http://example.org/", final_url=to) == "parked"
    assert (
        judged("Our story", LONG, url="http://hugedomains.com/about", final_url="https://www.hugedomains.com/x") is None
    )
