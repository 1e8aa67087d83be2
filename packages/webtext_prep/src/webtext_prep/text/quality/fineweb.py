"""FineWeb's own rule: lines that end like sentences, are long enough, and do not repeat.

The numbers are from Penedo et al. 2024, "The FineWeb Datasets: Decanting the Web for the Finest Text Data at
Scale", https://arxiv.org/abs/2406.17557, section 3.6. datatrove's defaults differ: .01 of characters in repeated lines,
and .3 lines a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from webtext_prep.text.quality.base import CriteriaRule, Criterion, lines_of, repeated, share

MIN_LINES_WITH_END_MARK = 0.12
MAX_SHORT_LINES = 0.67
MAX_DUPLICATE_LINE_CHARACTERS = 0.1
"""A document is dropped that has at most the first, or at least one of the others."""
SHORT_LINE = 30
"""A line with fewer characters is short."""
END_MARKS = frozenset(
    "!.?։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕៖៙៚᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿․‼‽⁇⁈⁉⳹⳺⳻⸮⸼⹓⹔⹠⹡。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉"
    "꩝꩞꩟꫰꫱꯫︒︕︖﹒﹖﹗！．？｡𐩖𐩗𐽕𐽖𐽗𐽘𐽙𐾆𐾇𐾈𐾉𑁇𑁈𑂾𑂿𑃀𑃁𑅁𑅂𑅃𑇅𑇆𑇍𑇞𑇟𑈸𑈹𑈻𑈼𑊩𑏔𑏕𑑋𑑌𑗂𑗃𑗉𑗊𑗋𑗌𑗍𑗎𑗏𑗐𑗑𑗒𑗓𑗔𑗕𑗖𑗗𑙁𑙂𑜼𑜽𑜾𑥄𑥆𑩂𑩃𑪛𑪜𑱁𑱂"
    "𑻷𑻸𑽃𑽄𖩮𖩯𖫵𖬷𖬸𖭄𖵮𖵯𖺘𛲟𝪈"
)
"""Unicode's Sentence_Terminal, and three marks of Khmer."""


class FineWeb(CriteriaRule):
    """Drop documents made of fragments: FineWeb (Penedo et al. 2024), section 3.6.

    Blank lines don't count. FineWeb applies it after Gopher's rules and part of C4's.
    Drops: few_lines_with_end_mark, short_lines, duplicate_line_characters.
    """

    name: ClassVar[str] = "fineweb"

    def criteria(self, text: str) -> Iterator[Criterion]:
        """Three shares."""
        lines = lines_of(text)
        ended = share(sum(line[-1] in END_MARKS for line in lines), len(lines))
        yield "lines with end mark", ended, "more than", MIN_LINES_WITH_END_MARK, "few_lines_with_end_mark"
        short = share(sum(len(line) < SHORT_LINE for line in lines), len(lines))
        yield "short lines", short, "less than", MAX_SHORT_LINES, "short_lines"
        repeats = share(repeated(lines)[1], sum(map(len, lines)))
        name = "characters in repeated lines"
        yield name, repeats, "less than", MAX_DUPLICATE_LINE_CHARACTERS, "duplicate_line_characters"
