"""The hash chain: equal prefixes share, anything that differs separates from there on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_backend.kv.identity import ExtraKeys, SegmentChain, TokenChain


def tokens(values: list[int], extra: ExtraKeys = ExtraKeys(), size: int = 4) -> list[object]:  # noqa: B008
    chain = TokenChain(values, lambda index: 1000 + index, size, extra)
    return list(chain.upto(len(values) // size))


def shared(one: list[object], two: list[object]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def test_equal_prefixes_share_and_a_difference_lasts() -> None:
    assert shared(tokens(list(range(16))), tokens([*range(8), 99, *range(9, 16)])) == 2
    assert shared(tokens(list(range(16))), tokens([99, *range(1, 16)])) == 0


def test_salt_adapter_and_image_separate() -> None:
    plain, values = tokens(list(range(16))), list(range(16))
    assert shared(plain, tokens(values, ExtraKeys(cache_salt="a"))) == 0
    assert shared(plain, tokens(values, ExtraKeys(lora_id=3))) == 0
    assert shared(tokens(values, ExtraKeys(cache_salt="a")), tokens(values, ExtraKeys(cache_salt="b"))) == 0
    assert shared(plain, tokens(values, ExtraKeys(multimodal=((9, 2, "cat"),)))) == 2
    one, two = (tokens(values, ExtraKeys(multimodal=((9, 2, name),))) for name in ("cat", "dog"))
    assert shared(one, two) == 2


def test_output_joins_the_chain_and_a_later_prompt_can_hit_it() -> None:
    chain = TokenChain(list(range(6)), lambda index: 1000 + index, 4)
    later = tokens([*range(6), *(1000 + index for index in range(6))])
    assert list(chain.upto(3)) == later
    assert chain.tokens(8)[6:] == [1000, 1001]


segments = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 23)), min_size=1, max_size=5)


@settings(deadline=None, max_examples=150)
@given(segments, segments, st.integers(1, 8), st.data())
def test_segments_share_exactly_where_their_tokens_do(
    one: list[tuple[int, int]], two: list[tuple[int, int]], size: int, data: st.DataObject
) -> None:
    """Segments are a shorthand for tokens: two prompts built of the same leading segments share the same blocks either way."""
    two = one[: data.draw(st.integers(0, len(one)))] + [(seed + 10, length) for seed, length in two]
    written = [[(seed, index) for seed, length in parts for index in range(length)] for parts in (one, two)]
    numbers = {token: number for number, token in enumerate(sorted({*written[0], *written[1]}))}
    by_token = [
        list(TokenChain([numbers[token] for token in text], lambda index: -index - 1, size).upto(len(text) // size))
        for text in written
    ]
    by_segment = []
    for parts, text, seed in ((one, written[0], 77), (two, written[1], 78)):
        chain = SegmentChain(parts, seed, size)
        wanted = len(text) // size
        for upto in sorted(data.draw(st.lists(st.integers(0, wanted), max_size=3))):
            chain.upto(upto)
        by_segment.append(list(chain.upto(wanted))[:wanted])
    assert shared(*by_segment) == shared(*by_token)


def test_segments_do_not_take_images() -> None:
    with pytest.raises(ValueError, match="TokenChain"):
        SegmentChain([(1, 4)], 2, 4, ExtraKeys(multimodal=((0, 1, "cat"),)))
