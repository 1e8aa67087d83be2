"""Every number of the quality rules, with its source.

Gopher   Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher",
         https://arxiv.org/abs/2112.11446, section A.1.1 and table A1
C4       Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
         https://jmlr.org/papers/v21/20-074.html, section 2.2; what the paper does not say (marked *) is from the
         code that made C4, tensorflow_datasets/text/c4_utils.py
FineWeb  Penedo et al. 2024, "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale",
         https://arxiv.org/abs/2406.17557, section 3.6
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GopherRepetition:
    """Gopher, table A1. A document with more than one of these shares is dropped."""

    duplicate_lines: float = 0.30
    duplicate_paragraphs: float = 0.30
    duplicate_line_characters: float = 0.20
    duplicate_paragraph_characters: float = 0.20
    top_ngram_characters: tuple[tuple[int, float], ...] = ((2, 0.20), (3, 0.18), (4, 0.16))
    duplicate_ngram_characters: tuple[tuple[int, float], ...] = (
        (5, 0.15),
        (6, 0.14),
        (7, 0.13),
        (8, 0.12),
        (9, 0.11),
        (10, 0.10),
    )


@dataclass(frozen=True)
class GopherQuality:
    """Gopher, section A.1.1, "Quality filtering"."""

    min_words: int = 50
    max_words: int = 100_000
    min_mean_word_length: float = 3
    max_mean_word_length: float = 10
    max_symbols_per_word: float = 0.1
    """For each of `#` and the ellipsis."""
    ellipses: tuple[str, ...] = ("...", "…")
    bullets: tuple[str, ...] = ("•", "‣", "●", "▪", "-", "–", "*")
    """What a line in a list begins with."""
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_words_with_letter: float = 0.8
    min_stop_words: int = 2
    stop_words: frozenset[str] = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


@dataclass(frozen=True)
class C4:
    """C4, section 2.2. datatrove has 3 words and 5 sentences, from an earlier version of the paper."""

    min_words_per_line: int = 5
    min_sentences: int = 3
    max_word_length: int = 1000
    """* A line with a longer word is removed."""
    end_marks: tuple[str, ...] = (".", "!", "?", '"', "”")
    not_end_marks: tuple[str, ...] = ("...",)
    """* A line that ends so does not end a sentence."""
    notices: tuple[str, ...] = (
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )
    """* Lines that contain one of these, in whatever case, are removed, as are those with Javascript."""


@dataclass(frozen=True)
class FineWeb:
    """FineWeb, section 3.6. datatrove's defaults differ: .01 of characters in repeated lines, and .3 lines a word."""

    min_lines_with_end_mark: float = 0.12
    """At most this share, and the document is dropped."""
    max_duplicate_line_characters: float = 0.1
    """At least this share, and the document is dropped."""
    max_short_lines: float = 0.67
    """At least this share, and the document is dropped."""
    short_line: int = 30
    """A line with fewer characters is short."""
    end_marks: frozenset[str] = frozenset(
        "!.?։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕៖៙៚᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿․‼‽⁇⁈⁉⳹⳺⳻⸮⸼⹓⹔⹠⹡。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉"
        "꩝꩞꩟꫰꫱꯫︒︕︖﹒﹖﹗！．？｡𐩖𐩗𐽕𐽖𐽗𐽘𐽙𐾆𐾇𐾈𐾉𑁇𑁈𑂾𑂿𑃀𑃁𑅁𑅂𑅃𑇅𑇆𑇍𑇞𑇟𑈸𑈹𑈻𑈼𑊩𑏔𑏕𑑋𑑌𑗂𑗃𑗉𑗊𑗋𑗌𑗍𑗎𑗏𑗐𑗑𑗒𑗓𑗔𑗕𑗖𑗗𑙁𑙂𑜼𑜽𑜾𑥄𑥆𑩂𑩃𑪛𑪜𑱁𑱂"
        "𑻷𑻸𑽃𑽄𖩮𖩯𖫵𖬷𖬸𖭄𖵮𖵯𖺘𛲟𝪈"
    )
    """Unicode's Sentence_Terminal, and three marks of Khmer."""
