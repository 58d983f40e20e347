import itertools

from webleaper_jax.agent.engine import derive_seed


def test_seeds_are_repeatable_and_depend_on_every_part_and_its_place():
    parts = list(itertools.product((0, 1), ("a", "1"), (0, 1, 11), (1, 11)))
    seeds = [derive_seed(*p) for p in parts]
    assert seeds == [derive_seed(*p) for p in parts]
    assert len(set(seeds)) == len(parts)
    assert derive_seed("1", 2) != derive_seed(1, "2") != derive_seed("12")
    assert all(0 <= seed < 2**31 for seed in seeds)
