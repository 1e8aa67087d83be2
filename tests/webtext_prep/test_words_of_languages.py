"""What compares texts by their words finds the same in every language: copies, questions, footers, kinds of texts."""

import json
import random
from pathlib import Path

import pytest
from plain_shingles import similarity

from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.text.contamination import NGrams

# Some forty words of each, with what stands between two of them.
LANGUAGES = {
    "English": (
        " ",
        "the of harbour and bridge town river price repair winter letter member evening council road child",
    ),
    "Chinese": (
        "",
        "委员会 星期二 晚上 市政厅 开会 讨论 桥梁 价格 修理 费用 主席 愿望 秘书 答应 栏杆 去年 冬天 卡车 孩子 "
        "上学 店主 顾客 工程师 天气",
    ),
    "Japanese": (
        "",
        "委員会 火曜日 町役場 集まり 橋 値段 修理 費用 について 二時間 議長 願い を 書く 書記 手紙 カーテン 印刷 "
        "学校 でした 子供 冬",
    ),
    "Thai": (
        "",
        "คณะกรรมการ ประชุม วันอังคาร ที่ ศาลา เรื่อง สะพาน ราคา ซ่อม ฤดูหนาว เด็ก โรงเรียน ร้านค้า ลูกค้า วิศวกร อากาศ จดหมาย สมาชิก",
    ),
    "Lao": (
        "",
        "ຄະນະກຳມະການ ປະຊຸມ ວັນອັງຄານ ຂົວ ລາຄາ ສ້ອມແປງ ລະດູໜາວ ເດັກນ້ອຍ ໂຮງຮຽນ ຮ້ານຄ້າ ລູກຄ້າ ອາກາດ ຈົດໝາຍ ສະມາຊິກ ແມ່ນ້ຳ ບ້ານ",
    ),
    "Khmer": (
        "",
        "គណៈកម្មាធិការ ប្រជុំ ថ្ងៃអង្គារ ស្ពាន តម្លៃ ជួសជុល រដូវរងា ក្មេង សាលារៀន ហាង អតិថិជន វិស្វករ អាកាសធាតុ សំបុត្រ សមាជិក ទន្លេ",
    ),
    "Burmese": (
        "",
        "ကော်မတီ အစည်းအဝေး အင်္ဂါနေ့ တံတား ဈေးနှုန်း ပြုပြင် ဆောင်းရာသီ ကလေး ကျောင်း ဆိုင် ဖောက်သည် အင်ဂျင်နီယာ ရာသီဥတု စာ အဖွဲ့ဝင် မြစ်",
    ),
    "Hindi": (
        " ",
        "समिति मंगलवार शाम नगर भवन में पुल कीमत मरम्मत अध्यक्ष इच्छा सचिव सर्दी बच्चे स्कूल दुकानदार ग्राहक इंजीनियर मौसम चिट्ठी",
    ),
    "Bengali": (
        " ",
        "কমিটি মঙ্গলবার সন্ধ্যায় সেতু দাম মেরামত সভাপতি ইচ্ছা সচিব শীত শিশু বিদ্যালয় দোকানদার ক্রেতা প্রকৌশলী আবহাওয়া চিঠি সদস্য",
    ),
    "Tamil": (
        " ",
        "குழு செவ்வாய் மாலை பாலம் விலை பழுது தலைவர் விருப்பம் செயலாளர் குளிர்காலம் குழந்தை பள்ளி கடைக்காரர் பொறியாளர் வானிலை கடிதம்",
    ),
    "Korean": (
        " ",
        "위원회는 화요일 저녁에 시청에서 만나 다리와 가격을 수리 의장은 소원을 비서는 겨울에 아이들은 학교에 가게 "
        "손님이 기술자는 날씨가",
    ),
    "Arabic": (
        " ",
        "اِجْتَمَعَتِ اللَّجْنَةُ يَوْمَ الثُّلَاثَاءِ مَسَاءً فِي دَارِ البَلَدِيَّةِ جِسْرٌ سِعْرٌ إِصْلَاحٌ رَئِيسٌ أُمْنِيَةٌ شِتَاءٌ طِفْلٌ مَدْرَسَةٌ رِسَالَةٌ",
    ),
    "mixed": (
        "",
        "GPT-2 模型 训练 Python 代码 在 GPU 上 运行 数据 清洗 token 语料 损失 学习率 batch 检查点 恢复 评估",
    ),
}


def passage(language: str, seed: int, count: int = 60) -> list[str]:
    """Words of a language, drawn anew by each seed."""
    return random.Random(f"{language} {seed}").choices(LANGUAGES[language][1].split(), k=count)


def text_of(language: str, *parts: list[str]) -> str:
    """Words as they are written."""
    joiner = LANGUAGES[language][0]
    return joiner.join(joiner.join(part) for part in parts)


def rows(folder: Path) -> list[dict]:
    """The passages that were cut out."""
    return [json.loads(line) for line in b"".join(read_chunks(folder / "passages.jsonl.zst")).splitlines()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_dedup_finds_copies_that_differ_in_a_word_of_60_and_no_others(language):
    words, other = passage(language, 1), passage(language, 2)
    copy = [*words[:30], other[0] + other[1], *words[31:]]
    assert 0.8 <= similarity(text_of(language, words), text_of(language, copy)) < 1
    assert similarity(text_of(language, words), text_of(language, other)) < 0.4


@pytest.mark.parametrize("language", LANGUAGES)
def test_decontaminate_finds_a_question_and_leaves_alone_a_part_of_it(language):
    question, before, behind = passage(language, 3, 25), passage(language, 4), passage(language, 5)
    ngrams = NGrams.of(iter([("q", text_of(language, question))]), 13, 8)
    pages = [text_of(language, before, part, behind) for part in (question, question[5:10], [])]
    assert [bool(ngrams.hits(page)) for page in pages] == [True, False, False]
    assert ngrams.suspects(pages)[0]
    short = NGrams.of(iter([("q", text_of(language, question[:3]))]), 13, 8)
    assert (len(short), short.left_out) == (0, (1, 1))


def test_an_ngram_of_13_words_is_21_characters_of_chinese_or_39_of_thai():
    for text, expected in (
        ("word " * 20, 13),
        ("中" * 40, 21),
        ("ไ" * 60, 39),
        ("한국어 " * 20, 13),
        ("GPT模" * 20, 16),
    ):
        ngrams = NGrams.of(iter([("q", text)]), 13, 8)
        assert set(ngrams.sizes.tolist()) == {expected}


def test_dedup_passages_cuts_a_repeated_footer_in_every_language(webtext, write_shards, tmp_path):
    documents = [
        Document(f"http://{language}.org/{page}", f"{text_of(language, passage(language, page, 90))}\n{footer}")
        for language in LANGUAGES
        for footer in [text_of(language, passage(language, 0, 70))]
        for page in range(1, 4)
    ]
    folder = write_shards([documents])
    done = webtext("dedup-passages", "--input", folder, "--output", tmp_path / "out", "--shortest-piece", 0, "--json")
    assert done.json["notes"]["passages"] == 2 * len(LANGUAGES)
    assert {row["url"] for row in rows(tmp_path / "out")} == {page.url for page in documents if page.url[-1] != "1"}


@pytest.mark.parametrize("language", ["English", "Chinese", "Thai", "Hindi"])
def test_a_filter_learns_in_every_language_what_it_learns_in_english(language, webtext, write_shards, tmp_path):
    words = LANGUAGES[language][1].split()
    sides = {"good": words[: len(words) * 2 // 3], "against": words[len(words) // 3 :]}
    folders = []
    for side, known in sides.items():
        texts = (random.Random(f"{side} {number}").choices(known, k=40) for number in range(60))
        documents = [Document(f"http://{side}.org/{at}", text_of(language, text)) for at, text in enumerate(texts)]
        folders.append(write_shards([documents], side))
    found = webtext("train-filter", "--good", folders[0], "--against", folders[1], "--output", tmp_path / "f", "--json")
    assert found.json["auc"] == 1
