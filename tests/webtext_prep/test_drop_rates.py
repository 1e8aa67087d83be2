"""Which domains and sources lose too many documents: counted over all shards, exactly, and named."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.dedup.reports import GroupCounter, Groups, Loss, largest_losses
from webtext_prep.documents.document import Document

DOCUMENTS = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {"domain": st.sampled_from(["", "a.org", "b.org", "\udc80"]), "source": st.sampled_from("xy")}
        ),
        st.booleans(),
    ),
    max_size=30,
)


@given(st.lists(DOCUMENTS, max_size=3), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 5))
def test_losses_are_counted_as_one_would_by_hand(shards, share, least):
    documents, dropped = Counter(), Counter()
    for groups, is_dropped in (entry for shard in shards for entry in shard):
        for kind, name in groups.items():
            if name:
                documents[f"{kind} {name}".replace("\udc80", "?")] += 1
                dropped[f"{kind} {name}".replace("\udc80", "?")] += is_dropped
    expected = [
        Loss(name, count, dropped[name])
        for name, count in documents.items()
        if count >= least and dropped[name] / count > share
    ]

    def loader(shard):
        counter = GroupCounter()
        documents = [Document("http://x/", "", dict(groups)) for groups, _ in shard]
        counter.add(documents)
        packed = counter.groups().pack()
        gone = np.array([at for at, (_, is_dropped) in enumerate(shard) if is_dropped], np.int64)
        return lambda: (Groups.unpack(packed), gone)

    found = largest_losses([loader(shard) for shard in shards], share, least)
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [loss.share for loss in found] == sorted((loss.share for loss in found), reverse=True)


def test_a_loss_is_a_sentence_and_a_row():
    loss = Loss("source crawl of May", 1200, 900)
    assert str(loss) == "source crawl of May loses 900 of 1,200 documents (75%)"
    assert loss.as_dict() == {"source": "crawl of May", "documents": 1200, "dropped": 900}


def test_without_a_domain_the_host_counts_and_without_a_source_the_folder():
    counter = GroupCounter("crawls/may")
    counter.add([Document("http://www.example.co.uk/1"), Document("no host", "", {"source": "wiki"})])
    assert counter.groups().names == ["domain example.co.uk", "source crawls/may", "source wiki"]
