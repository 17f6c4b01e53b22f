"""The random graph of who probes whom."""

from collections import Counter

import pytest

from fleetscope.agents.probes import peers
from fleetscope.schema.identity import host_id

HOSTS = [host_id("c", f"host-{n}") & (1 << 64) - 1 for n in range(200)]
NOWHERE = [""] * len(HOSTS)


def edges(degree: int, now_s: float, groups: list[str] = NOWHERE) -> list[tuple[int, int]]:
    return [
        (me, other)
        for me, (own, group) in enumerate(zip(HOSTS, groups, strict=True))
        for other in peers(HOSTS, groups, own, group, degree, now_s)
    ]


@pytest.mark.property
@pytest.mark.parametrize("now_s", [0.0, 1.8e9, 1.8e9 + 12_345])
def test_every_host_probes_and_is_probed_by_as_many_and_all_hang_together(now_s: float) -> None:
    made = edges(5, now_s)
    out, into = Counter(a for a, _ in made), Counter(b for _, b in made)
    assert all(a != b for a, b in made)
    assert set(out.values()) <= {4, 5}
    assert max(into.values()) <= 5
    assert min(into.values()) >= 3  # two rings may name the same
    # Connected, and of a small diameter: bounds add up along a path.
    near: dict[int, set[int]] = {n: set() for n in range(len(HOSTS))}
    for a, b in made:
        near[a].add(b)
        near[b].add(a)
    reached, edge, hops = {0}, {0}, 0
    while edge:
        edge = {b for a in edge for b in near[a]} - reached
        reached |= edge
        hops += 1
    assert len(reached) == len(HOSTS)
    assert hops <= 6


@pytest.mark.property
def test_the_graph_changes_slowly() -> None:
    def at(now_s: float) -> set[tuple[int, int]]:
        return set(edges(5, now_s))

    base = 1_800_000_000.0
    assert at(base) == at(base + 60)
    kept = len(at(base) & at(base + 121)) / len(at(base))
    assert 0.75 < kept < 0.85
    assert len(at(base) & at(base + 3000)) / len(at(base)) < 0.1


@pytest.mark.unit
def test_half_of_the_peers_are_of_the_same_group() -> None:
    groups = [f"rack-{n % 20}" for n in range(len(HOSTS))]
    made = edges(6, 1.8e9, groups)
    same = sum(groups[a] == groups[b] for a, b in made)
    assert 0.45 < same / len(made) < 0.6


@pytest.mark.unit
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_hosts(count: int) -> None:
    ids = HOSTS[:count]
    for me in range(count):
        found = peers(ids, [""] * count, ids[me], "", 5, 0.0)
        assert me not in found
        assert len(found) == len(set(found)) <= count - 1
        assert found or count == 1
    assert peers(ids, [""] * count, HOSTS[9], "", 5, 0.0) == [] or count
