"""Answers of shields in front of sites: none of them enters a corpus, and pages about them do."""

import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of
from pages_on_loopback import Site, html, write_list

from webtext_prep.crawl.frontier.crawler import FEWEST_ANSWERS
from webtext_prep.extraction.edge_refusals import FEW_CHARACTERS, is_challenge, refused_outcome
from webtext_prep.stages.download import Download

WAIT = "Enable JavaScript and cookies to continue"
CHALLENGES = [
    # Cloudflare: managed challenge, older ones, blocks
    ("Just a moment...", WAIT, "<script>(function(){window._cf_chl_opt = {cvId: '3'};}())</script>"),
    ("Just a moment...", "", '<script src="/cdn-cgi/challenge-platform/h/b/orchestrate/chl_page/v1?ray=8"></script>'),
    ("Just a moment...", "Checking your browser before accessing example.org.", ""),
    ("Attention Required! | Cloudflare", "Sorry, you have been blocked", '<div id="cf-error-details">'),
    ("Please Wait... | Cloudflare", "Please complete the security check to access example.org", ""),
    ("Einen Moment bitte...", "", '<span id="challenge-error-text">Aktiviere JavaScript</span>'),
    ("example.org", "Performing security verification", "<script>window._cf_chl_opt={}</script>"),
    ("Access denied | example.org used Cloudflare to restrict access", "Error 1020", "<div id=cf-error-details>"),
    # Imperva
    ("", "", '<iframe id="main-iframe" src="/_Incapsula_Resource?SWUDNSAI=31&xinfo=1&incident_id=1-2">'),
    ("", "Request unsuccessful. Incapsula incident ID: 1-2", "Request unsuccessful. Incapsula incident ID: 1-2"),
    ("Pardon Our Interruption", "As you were browsing something about your browser made us think you were a bot.", ""),
    # Akamai
    (
        "Access Denied",
        'You don\'t have permission to access "http://example.org/"',
        "https://errors.edgesuite.net/18.2",
    ),
    ("", "", '<script src="/_sec/cp_challenge/sec-4-4.js"></script>'),
    ("example.org", "", "<div id='sec-if-cpt-container'></div>"),
    # AWS WAF
    ("", "", "<script>window.gokuProps = {}</script>"),
    ("Human Verification", "Confirm you are human by completing the puzzle", ""),
    ("", "JavaScript is disabled", "<script>AwsWafIntegration.getToken().then(() => {})</script>"),
    # DataDome
    (
        "example.org",
        "Please enable JS and disable any ad blocker",
        '<script src="https://ct.captcha-delivery.com/c.js">',
    ),
    ("example.org", "", '<iframe src="https://geo.captcha-delivery.com/captcha/?initialCid=1">'),
    # HUMAN
    ("Access to this page has been denied.", "Press & Hold to confirm you are a human (and not a bot).", ""),
    ("Access to this page has been denied", "", '<div id="px-captcha"></div>'),
    ("", "", '<script src="https://captcha.px-cloud.net/PX1/captcha.js"></script>'),
    # Vercel, Sucuri, Anubis, DDoS-Guard, and others
    ("Vercel Security Checkpoint", "We're verifying your browser", ""),
    ("You are being redirected...", "Javascript is required.", "<script>var sucuri_cloudproxy_js=''</script>"),
    ("Making sure you're not a bot!", "Loading...", '<img src="/.within.website/x/cmd/anubis/static/img/p.webp">'),
    ("Making sure you’re not a bot!", "Your browser is being checked.", ""),
    ("DDoS-Guard", "Checking your browser before accessing", '<script src="https://check.ddos-guard.net/check.js">'),
    ("Are you a robot?", "Please confirm that you are a human by clicking the box.", ""),
    ("Verify you are human", "Complete the captcha below.", ""),
    ("Security check", "We have detected unusual activity from your network.", ""),
]
LONG = "The page says more of the matter than a notice would, with reasons, examples and what others think of it. " * 7
assert len(LONG) > FEW_CHARACTERS
ABOUT = [
    *((title, LONG, f"<p>{LONG}</p>{html}") for title, _, html in CHALLENGES[::2]),
    ("Just a moment", "A poem.\nThe river stood, and then went on.", ""),
    ("Just a moment: notes from the garden", "The beans are up.", ""),
    ("Please wait for the green light", "Rules for crossings.", ""),
    ("A page let through", "Short news.", '<script src="/cdn-cgi/challenge-platform/scripts/jsd/main.js"></script>'),
    ("Short news", "It rains.", '<script src="/_Incapsula_Resource?SWJIYLWA=719d34d3"></script>'),
    ("Short news", "It rains.", '<script src="https://js.datadome.co/tags.js"></script>'),
    ("Short news", "It rains.", '<script src="https://client.px-cloud.net/PX1/main.min.js"></script>'),
    ("Captcha", "A game of cards.", ""),
    ("Security checks at airports", "Take your shoes off.", ""),
    ("Are you a robot", "A song of 1978.", ""),
    ("Access denied", "A film of 1999 with a car in it.", ""),
    ("Attention required!", "The bridge is closed on Monday.", ""),
    ("robots.txt", "What a crawler reads first.", ""),
    ("The Human Verification of Theorems", "Abstract. Proofs are read by readers.", ""),
    ("DDoS-Guard of honour", "Soldiers.", ""),
]  # fmt: skip
assert len(CHALLENGES) >= 30 and len(ABOUT) >= 30


@pytest.mark.parametrize(("title", "text", "page"), CHALLENGES)
def test_a_challenge_is_told(title, text, page):
    assert is_challenge(title, text, f"<html><title>{title}</title>{page}<p>{text}</p></html>".encode())


@pytest.mark.parametrize(("title", "text", "page"), ABOUT)
def test_a_page_that_speaks_of_challenges_or_passed_one_stays(title, text, page):
    assert not is_challenge(title, text, f"<html><title>{title}</title>{page}<p>{text}</p></html>".encode())


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (402, {"crawler-price": "USD 0.01"}, "payment_required"),
        (402, {}, "payment_required"),
        (403, {"cf-mitigated": "challenge"}, "refused_by_edge"),
        (429, {"x-vercel-mitigated": "deny"}, "refused_by_edge"),
        (202, {"x-amzn-waf-action": "challenge"}, "refused_by_edge"),
        (405, {"x-amzn-waf-action": "captcha"}, "refused_by_edge"),
        (403, {"x-datadome": "protected"}, "refused_by_edge"),
        (200, {"x-datadome": "protected"}, None),
        (403, {"server": "cloudflare", "cf-ray": "1"}, None),
        (429, {"retry-after": "5"}, None),
    ],
)
def test_a_header_of_a_shield_or_a_price_is_an_outcome_of_its_own(status, headers, outcome):
    assert refused_outcome(status, headers) == outcome


def test_a_crawl_keeps_the_price_and_ends_asking_a_host_that_refuses(tmp_path):
    class Shield(Site):
        def page(self, request):
            if request.path.startswith("/paid"):
                request.answer(402, b"pay", crawler_price="USD 0.01")
            elif request.path.startswith("/shut"):
                request.answer(403, b"no", cf_mitigated="challenge")
            elif request.path == "/challenge":
                request.answer(
                    200, html("Just a moment...").replace(b"</head>", b"<script>_cf_chl_opt</script></head>")
                )
            else:
                request.answer(200, html("A page"))

    site = Shield()
    open_ones = [site.url(f"/{number}") for number in range(FEWEST_ANSWERS - 3)]
    urls = [
        *open_ones,
        site.url("/paid"),
        site.url("/paid2"),
        site.url("/challenge"),
        *(site.url(f"/shut{number}") for number in range(9)),
    ]
    settings = Download(extractor="resiliparse", allow_private_addresses=True, delay=0.0, per_host=1)
    source = write_list(tmp_path / "urls.jsonl.zst", urls)
    job_of(settings, [source], tmp_path / "out", restart=False, workers=1).run()
    site.stop()
    rows = {row["url"]: row for row in outcomes_of(tmp_path / "out")}
    assert rows[site.url("/paid")]["outcome"] == "payment_required"
    assert rows[site.url("/paid")]["crawler_price"] == "USD 0.01"
    assert rows[site.url("/challenge")]["outcome"] == "challenge"
    assert [document.url for document in documents_of(tmp_path / "out")] == open_ones
    assert {rows[url]["outcome"] for url in urls[-9:]} == {"refused_by_edge"}
    assert sum(path.startswith("/shut") for path in site.paths) <= 1
