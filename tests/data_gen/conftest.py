"""A small made-up world of prizes for writers, with the traps that real tables have."""

import random
from typing import NamedTuple

import pytest

from data_gen.checker import Checker
from data_gen.drafts import Source, make_sources
from data_gen.synthesize import SynthesisConfig, layouts, synthesize
from data_gen.trees import build_trees
from webleaper_jax.agent.corpus import unique_titles
from webleaper_jax.records import Cell, Table, Task, Tree

FIRST = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou", "Mo", "Nan", "Ola")
LAST = ("Archer", "Bell", "Carver", "Dyer", "Ebury", "Fuller")
COUNTRIES = ("Norway", "Ghana", "Peru", "Japan")
PUBLISHERS = ("Faber", "Cape", "Virago")


class World(NamedTuple):
    tables: list[Table]
    trees: list[Tree]
    sources: list[Source]
    checker: Checker

    @property
    def by_title(self) -> dict[str, Tree]:
        return {source.title: source.tree for source in self.sources}


def prize_tables(seed: int = 0, prizes: int = 4, winners: int = 18) -> list[Table]:
    """Tables `Year, Author, Country, Publisher`; authors stand in several, one of them twice in each."""
    rng = random.Random(seed)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    country = {name: COUNTRIES[rng.randrange(len(COUNTRIES))] for name in names}
    pool = rng.sample(names, 3 * winners)
    tables = []
    for number in range(prizes):
        chosen = rng.sample(pool, winners)
        chosen[-1] = chosen[0]
        rows = tuple(
            (
                Cell(str(1960 + 2 * position + number)),
                Cell(name, (name,)),
                Cell(country[name], (country[name],)),
                Cell(PUBLISHERS[rng.randrange(len(PUBLISHERS))]),
            )
            for position, name in enumerate(chosen)
        )
        tables.append(
            Table(
                page_title=f"{('Golden', 'Silver', 'Copper', 'Marble')[number]} Quill for novels",
                url=f"https://example.org/{number}",
                columns=("Year", "Author", "Country", "Publisher"),
                rows=rows,
                family="quills",
            )
        )
    return tables


def build(tables: list[Table]) -> World:
    trees, _ = build_trees(tables)
    sources = make_sources(tables, trees, unique_titles(tables))
    return World(tables, trees, sources, Checker(tables, layouts(tables, sources)))


@pytest.fixture(scope="session")
def build_world():
    """Builds a world from tables."""
    return build


@pytest.fixture(scope="session")
def make_prizes():
    """Makes the tables of a made-up world from a seed."""
    return prize_tables


@pytest.fixture(scope="session")
def world() -> World:
    return build(prize_tables())


CONFIG = SynthesisConfig(per_tree=6, per_pair=6, per_reverse_pair=8)


@pytest.fixture(scope="session")
def config() -> SynthesisConfig:
    return CONFIG


@pytest.fixture(scope="session")
def world_tasks(world) -> list[Task]:
    """The tasks of the made-up world; all three variants are among them."""
    tasks, _ = synthesize(world.tables, world.trees, CONFIG, splits={"quills": "train"})
    assert {task.variant for task in tasks} == {"basic", "union", "reverse_union"}
    return tasks
