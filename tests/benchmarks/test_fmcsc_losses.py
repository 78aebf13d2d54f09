import fmcsc_losses


def test_a_loss_belongs_to_the_round_that_trained_with_it_and_every_kind_has_a_panel(tmp_path):
    rounds = [
        {"metrics": {"pretrain_loss": 0.5}},
        {"metrics": {"full_loss": 7.0, "view_1_loss": 0.2, "view_2_loss": 0.3}},
        {"metrics": {"full_loss": 6.0, "view_1_loss": 0.1, "view_2_loss": 0.2}},
        {"metrics": {"acc": 0.9}},
    ]
    found = fmcsc_losses.curves({"pretrain_loss": 1.0}, rounds)
    assert found == {
        "pretrain_loss": [(1, 1.0), (2, 0.5)],
        "full_loss": [(3, 7.0), (4, 6.0)],
        "view_1_loss": [(3, 0.2), (4, 0.1)],
        "view_2_loss": [(3, 0.3), (4, 0.2)],
    }
    first, again = tmp_path / "1.svg", tmp_path / "2.svg"
    fmcsc_losses.draw(found, first)
    fmcsc_losses.draw(found, again)
    assert first.read_bytes() == again.read_bytes()
    text = first.read_text()
    assert text.count('id="axes_') == 3
