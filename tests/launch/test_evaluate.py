"""`launch.evaluate`: what a policy is called."""

from configs.quickstart import get_config
from launch.evaluate import embedded_engine
from tests.tiny_policy import save_tokenizer, tiny_decoder
from webleaper_jax.model import hf


def test_policies_of_one_folder_name_are_told_apart_by_their_weights(tmp_path):
    """A log of one must not be taken for the other's."""
    names = []
    for run, seed in (("a", 0), ("b", 1), ("c", 0)):
        folder = tmp_path / run / "policy"
        hf.save_checkpoint(tiny_decoder(seed), folder)
        save_tokenizer(folder)
        names.append(embedded_engine(get_config("smoke"), folder, folder.name).name)
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("policy:") for name in names)
