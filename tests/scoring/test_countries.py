"""Country names: every name that ISO gives, and everyday ones."""

import pycountry
import pytest

from webleaper_jax.scoring.countries import country_code, region_name


def test_iso_names_and_codes_name_their_country_or_a_part_with_its_own_code():
    for country in pycountry.countries:
        assert country_code(country.name) == country.alpha_2
        assert country_code(country.alpha_2) == country.alpha_2
        assert country_code(country.alpha_2.lower()) in (None, country.alpha_2)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("USA", "U.S.", "U. S. A.", "United States of America", "American", "the United States"), "US"),
        (("UK", "Great Britain", "British", "Britain"), "GB"),
        (("Holland", "NED", "Dutch", "The Netherlands"), "NL"),
        (("South Korea", "Korea, Republic of", "Republic of Korea", "KOR"), "KR"),
        (("Côte d'Ivoire", "Cote d’Ivoire", "Ivory Coast", "CIV"), "CI"),
        (("East Germany", "GDR"), "DDR"),
        (("England", "ENG", "English"), "ENG"),
        (("Georgia (country)", "Georgian", "GEO"), "GE"),
    ],
)
def test_aliases(names, code):
    assert {country_code(name) for name in names} == {code}


@pytest.mark.parametrize("text", ["", "Atlantis", "and", "can", "Austria-Hungary", "France and Germany", "Paris"])
def test_no_country(text):
    assert country_code(text) is None


def test_regions():
    assert region_name("IL") == region_name("Illinois") == region_name("ILLINOIS")
    assert region_name("UK") == region_name("United Kingdom") != region_name("Ukraine")
