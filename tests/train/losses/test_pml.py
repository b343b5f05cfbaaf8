"""Compatibility with pytorch-metric-learning (PML): its losses in our recipes, our losses in its trainers."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import lookalike_here
from train import losses
from train.losses.pml import PMLCall

pml = pytest.importorskip("pytorch_metric_learning")
from pytorch_metric_learning import losses as pml_losses  # noqa: E402
from pytorch_metric_learning import miners as pml_miners  # noqa: E402
from pytorch_metric_learning import trainers  # noqa: E402
from pytorch_metric_learning.distances import CosineSimilarity  # noqa: E402
from pytorch_metric_learning.reducers import MeanReducer  # noqa: E402

torch.manual_seed(0)
Y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
X = torch.nn.functional.normalize(torch.randn(4, 6)[Y] + torch.randn(12, 6), dim=1).double()
REF_Y = torch.tensor([0, 1, 1, 2, 3, 4])
REF_X = torch.nn.functional.normalize(torch.randn(6, 6), dim=1).double()


def gradient(loss: Any, **references: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = X.clone().requires_grad_()
    value = loss(x, Y, **references)
    value.backward()
    return value.detach(), x.grad


def test_pml_losses_equal_pml() -> None:
    module = losses.build({"name": "pml:MultiSimilarityLoss", "alpha": 1.5, "beta": 20})
    ours, theirs = gradient(module), gradient(pml_losses.MultiSimilarityLoss(alpha=1.5, beta=20))
    torch.testing.assert_close(ours, theirs)


def test_pml_losses_accept_references_and_memory() -> None:
    """PML's references replace the batch, ours extend it; equal to our loss with the same formula."""
    references = {"ref_embeddings": REF_X, "ref_labels": REF_Y}
    theirs = losses.build({"name": "pml:MultiSimilarityLoss", "base": 0.5})
    ours = losses.build({"name": "raw", "mining": None})
    for a, b in zip(gradient(theirs, **references), gradient(ours, **references), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    with_memory = [
        losses.build({**spec, "memory": 16}, embedding_dim=6).double()
        for spec in ({"name": "pml:MultiSimilarityLoss"}, {"name": "raw", "mining": None})
    ]
    for _ in range(3):
        torch.testing.assert_close(*(module(X, Y) for module in with_memory), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"name": "raw", "mining": None}, pml_losses.MultiSimilarityLoss(2, 50, 0.5)),
        (
            {"name": "triplet-cosine", "margin": 0.1},
            pml_losses.TripletMarginLoss(0.1, distance=CosineSimilarity(), reducer=MeanReducer()),
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_references_replace_the_batch_as_in_pml(ours: dict[str, Any], theirs: torch.nn.Module) -> None:
    """Values and gradients by the batch and by the references; ours alone lets them join the batch."""
    found = []
    for loss in (PMLCall(losses.build(ours)), theirs):
        x, references = X.clone().requires_grad_(), REF_X.clone().requires_grad_()
        value = loss(x, Y, ref_emb=references, ref_labels=REF_Y)
        found.append((value.detach(), *torch.autograd.grad(value, (x, references))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    joined = losses.build(ours)(X, Y, ref_embeddings=REF_X, ref_labels=REF_Y)
    assert float(joined) != pytest.approx(float(found[0][0]), rel=1e-3)
    torch.testing.assert_close(PMLCall(losses.build(ours))(X, Y), theirs(X, Y), rtol=1e-7, atol=1e-9)


def test_references_replace_no_batch_that_forms_pairs() -> None:
    with pytest.raises(ValueError, match="forms pairs"):
        PMLCall(losses.build({"name": "n-pair"}))(X, Y, ref_emb=REF_X, ref_labels=REF_Y)


def test_pml_losses_accept_regularizers() -> None:
    spread = {"name": "spread-out", "weight": 0.3}
    value = losses.build({"name": "pml:TripletMarginLoss", "margin": 0.1, "regularizers": [spread]})(X, Y)
    alone = pml_losses.TripletMarginLoss(margin=0.1)(X, Y) + losses.build({"regularizers": [spread]})(X, Y)
    torch.testing.assert_close(value, alone)


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance"),
    [
        ({"name": "raw", "mining": None}, pml_losses.MultiSimilarityLoss(2, 50, 0.5), 1e-7),
        (
            {"name": "triplet-cosine", "margin": 0.1},
            pml_losses.TripletMarginLoss(0.1, distance=CosineSimilarity(), reducer=MeanReducer()),
            1e-7,
        ),
        ({"name": "lifted"}, pml_losses.LiftedStructureLoss(neg_margin=1, pos_margin=0), 1e-7),
        (
            {"name": "lifted-generalized", "margin": 0.5},
            pml_losses.GeneralizedLiftedStructureLoss(
                neg_margin=-0.5, pos_margin=0, distance=CosineSimilarity()
            ),
            1e-7,
        ),
        ({"name": "fast-ap"}, pml_losses.FastAPLoss(num_bins=10), 1e-5),
        ({"name": "histogram"}, pml_losses.HistogramLoss(n_bins=100), 1e-2),  # its nodes are float32
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_values_and_gradients_agree(ours: dict[str, Any], theirs: torch.nn.Module, tolerance: float) -> None:
    (value, slope), (wanted, wanted_slope) = gradient(losses.build(ours)), gradient(theirs)
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(slope, wanted_slope, rtol=tolerance, atol=tolerance * float(slope.abs().max()))


@pytest.mark.parametrize(
    "spec", [{"name": "triplet", "negatives": "optimal"}, {"name": "pml:ContrastiveLoss"}]
)
def test_losses_work_in_pml_trainer(spec: dict[str, Any]) -> None:
    torch.manual_seed(1)
    images = torch.randn(4, 8).repeat_interleave(8, 0) + 0.8 * torch.randn(32, 8)
    labels = torch.arange(4).repeat_interleave(8)
    model = torch.nn.Linear(8, 4)
    loss = losses.build(spec)
    before = float(loss(model(images), labels))
    trainer = trainers.MetricLossOnly(
        models={"trunk": model},
        optimizers={"trunk_optimizer": torch.optim.Adam(model.parameters(), 0.02)},
        batch_size=16,
        loss_funcs={"metric_loss": loss},
        dataset=torch.utils.data.TensorDataset(images, labels),
        mining_funcs={},
        iterations_per_epoch=10,
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=2)
    assert float(loss(model(images), labels)) < 0.8 * before


def test_pml_miners_are_refused() -> None:
    pairs = pml.miners.MultiSimilarityMiner()(X, Y)
    with pytest.raises(ValueError, match="mining"):
        losses.build({"name": "raw"})(X, Y, pairs)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "pml:MultiSimilarityLos"}, "MultiSimilarityLoss"),
        ({"name": "pml:MultiSimilarityLoss", "alfa": 2}, "alpha"),
    ],
)
def test_unknown_pml_names_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.build(spec)


LABELLED = sorted(
    name
    for name, cls in vars(pml_losses).items()
    if isinstance(cls, type)
    and issubclass(cls, pml_losses.BaseMetricLossFunction)
    and name not in ("BaseMetricLossFunction", "GenericPairLoss", "ManifoldLoss", "VICRegLoss")
)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # PML's HistogramLoss
@pytest.mark.parametrize("name", LABELLED)
def test_every_pml_loss_for_labels_takes_a_training_step(name: str) -> None:
    """With the sizes that the trainer knows alone, a step lowers the loss, and moves its own weights."""
    own = {"margin": 0.4, "Tn": 10} if name == "RankedListLoss" else {}
    torch.manual_seed(0)
    module = losses.build({"name": f"pml:{name}", **own}, num_classes=4, embedding_dim=6)
    weights = list(module.parameters())
    sized = {"num_classes", "embedding_size", "descriptors_dim"} & vars(module.term.loss).keys()
    assert bool(weights) == bool(sized - ({"num_classes"} if name == "MarginLoss" else set()))
    x = X.float().requires_grad_()
    before = [weight.detach().clone() for weight in weights]
    value = module(x, Y)
    value.backward()
    assert torch.isfinite(value)
    assert float(x.grad.norm()) > 0
    with torch.no_grad():
        for parameter in (x, *weights):
            parameter -= 1e-3 * parameter.grad
    assert all((old != new).any() for old, new in zip(before, weights, strict=True))
    assert float(module(x, Y)) < float(value)


@pytest.mark.parametrize("name", ["ArcFaceLoss", "SubCenterArcFaceLoss", "P2SGradLoss"])
def test_pml_losses_get_the_sizes_of_the_training(name: str) -> None:
    """Equal to PML's own with the same weights; a size that is given wins."""
    ours = losses.build({"name": f"pml:{name}"}, num_classes=4, embedding_dim=6)
    sizes = {"descriptors_dim" if name == "P2SGradLoss" else "embedding_size": 6, "num_classes": 4}
    theirs = getattr(pml_losses, name)(**sizes)
    theirs.load_state_dict(
        {key.removeprefix("term.loss."): value for key, value in ours.state_dict().items()}
    )
    torch.testing.assert_close(ours(X.float(), Y), theirs(X.float(), Y))
    given = losses.build({"name": f"pml:{name}", "num_classes": 9}, num_classes=4, embedding_dim=6)
    assert given.term.loss.num_classes == 9


def test_training_gives_pml_losses_their_sizes(shop: Path, tmp_path: Path) -> None:
    """The checkpoint has three proxies for each of the training classes, of the model's dimension."""
    words = ["train", "--data", f"folder:{shop}", "--out", str(tmp_path / "out"), "--set", "epochs=1"]
    words += ["--recipe", "scratch", "--set", "preprocess.size=24", "--set", "model.embedding_dim=8"]
    lookalike_here(*words, "--set", "loss={name: pml:SubCenterArcFaceLoss}")
    tensors = load_file(next(tmp_path.rglob("*.safetensors")))
    (proxies,) = [value for key, value in tensors.items() if key.endswith("term.loss.W")]
    assert proxies.shape == (8, 3 * 3)


def test_an_optional_size_is_left_alone() -> None:
    """With a number of classes, MarginLoss would learn a boundary for each."""
    module = losses.build({"name": "pml:MarginLoss"}, num_classes=4, embedding_dim=6)
    assert module.term.loss.beta.numel() == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "pml:SubCenterArcFaceLoss"}, "pass num_classes and embedding_dim to build"),
        ({"name": "pml:ArcFaceLoss", "num_classes": 3}, "pass embedding_dim to build"),
        ({"name": "pml:RankedListLoss", "margin": 0.4}, "needs 'Tn'; add it"),
        ({"name": "pml:VICRegLoss"}, "no loss 'VICRegLoss' of labelled images"),
    ],
)
def test_a_missing_parameter_of_pml_is_named(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.build(spec)


@pytest.mark.slow
def test_missing_package_is_reported() -> None:
    """Without the package, our losses work and PML names fail with a message."""
    assert importlib.util.find_spec("pytorch_metric_learning") is not None
    code = (
        "import sys; sys.modules['pytorch_metric_learning'] = None\n"
        "from train import losses\n"
        "losses.build({'name': 'raw'})\n"
        "mined = {'name': 'raw', 'mining': {'name': 'pml:HDCMiner'}}\n"
        "for spec in ({'name': 'pml:MultiSimilarityLoss'}, mined):\n"
        "    try: losses.build(spec)\n"
        "    except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == done.stdout.count("pip install pytorch-metric-learning") == 2


# ---- PML's miners

MINERS: list[tuple[str, dict[str, Any]]] = [
    ("AngularMiner", {"angle": 25}),
    ("BatchEasyHardMiner", {"pos_strategy": "hard", "neg_strategy": "semihard"}),
    ("BatchHardMiner", {}),
    ("DistanceWeightedMiner", {"cutoff": 0.4}),
    ("HDCMiner", {"filter_percentage": 0.3}),
    ("MultiSimilarityMiner", {"epsilon": 0.05}),
    ("PairMarginMiner", {"pos_margin": 0.3, "neg_margin": 0.9}),
    ("TripletMarginMiner", {"margin": 0.1, "type_of_triplets": "semihard"}),
    ("UniformHistogramMiner", {"num_bins": 10, "pos_per_bin": 3, "neg_per_bin": 4}),
]


def test_every_miner_of_pml_is_tested() -> None:
    public = {name for name, cls in vars(pml_miners).items() if isinstance(cls, type)}
    assert {name for name, _ in MINERS} == public - {"BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets"}


@pytest.mark.parametrize(("name", "parameters"), MINERS, ids=[name for name, _ in MINERS])
@pytest.mark.parametrize("loss", ["TripletMarginLoss", "ContrastiveLoss"])
def test_pml_losses_take_pml_miners(name: str, parameters: dict[str, Any], loss: str) -> None:
    """The same random numbers give the same choice."""
    ours = losses.build({"name": f"pml:{loss}", "mining": {"name": f"pml:{name}", **parameters}})
    miner, theirs = getattr(pml_miners, name)(**parameters), getattr(pml_losses, loss)()
    torch.manual_seed(5)
    found = gradient(ours)
    torch.manual_seed(5)
    wanted = gradient(lambda x, y: theirs(x, y, miner(x, y)))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "parameters"), MINERS, ids=[name for name, _ in MINERS])
@pytest.mark.parametrize("loss", ["contrastive", "siglip"])
def test_our_pair_losses_take_pml_miners(name: str, parameters: dict[str, Any], loss: str) -> None:
    """By a loop over the pairs that PML's miner returns, each once."""
    mining = {"name": f"pml:{name}", **parameters}
    module = losses.build({"name": loss, "mining": mining}).double()
    miner = getattr(pml_miners, name)(**parameters)
    torch.manual_seed(5)
    value, slope = gradient(module)
    torch.manual_seed(5)
    found = miner(X, Y)
    a, p, b, n = found if len(found) == 4 else (found[0], found[1], found[0], found[2])
    assert len(a) > 0

    def by_loops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.nn.functional.normalize(x, dim=1)
        total = 0.0 * x.sum()
        for i, j in {*zip(a.tolist(), p.tolist(), strict=True)}:
            s = z[i] @ z[j]
            total = total + (-s if loss == "contrastive" else torch.nn.functional.softplus(10 - 10 * s))
        for i, j in {*zip(b.tolist(), n.tolist(), strict=True)}:
            s = z[i] @ z[j]
            if loss == "contrastive":
                total = total + torch.relu(s - 0.5)
            else:
                total = total + torch.nn.functional.softplus(10 * s - 10)
        return total / len(x)

    wanted, wanted_slope = gradient(by_loops)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(slope, wanted_slope)


def test_pml_multi_similarity_miner_equals_vthm() -> None:
    """Their miner and ours choose the same pairs."""
    ours = losses.build({"name": "multi-similarity", "mining": {"name": "vthm", "margin": 0.1}})
    theirs = losses.build(
        {"name": "multi-similarity", "mining": {"name": "pml:MultiSimilarityMiner", "epsilon": 0.1}}
    )
    for a, b in zip(gradient(ours), gradient(theirs), strict=True):
        torch.testing.assert_close(a, b)


MS_MINER = {"name": "pml:MultiSimilarityMiner"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "contrastive", "mining": {"name": "pml:MultiSimMiner"}}, "did you mean 'MultiSimilarityM"),
        ({"name": "contrastive", "mining": {**MS_MINER, "epsilom": 1}}, "has no parameter 'epsilom'"),
        ({"name": "contrastive", "mining": {"name": "pml:BaseMiner"}}, "has no miner 'BaseMiner'"),
        ({"name": "triplet", "mining": MS_MINER}, "our pair losses and its own losses take any"),
        ({"name": "raw", "negatives": "optimal", "mining": MS_MINER}, "leave negatives out"),
        ({"name": "contrastive", "memory": 10, "mining": MS_MINER}, "see the batch alone"),
        ({"name": "pml:ContrastiveLoss", "mining": {"name": "vthm"}}, "takes miners of pytorch-metric"),
        ({"name": "pml:ContrastiveLoss", "mining": "hard"}, "takes miners of pytorch-metric-learning"),
    ],
)  # fmt: skip
def test_miners_that_do_not_fit_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.build(spec, embedding_dim=6)


def test_training_with_a_pml_miner(tmp_path: Path, shop: Path) -> None:
    """By the command: of a loss of ours and of one of theirs; a resumed run needs no other setting."""
    for name in ("contrastive", "pml:TripletMarginLoss"):
        out = tmp_path / name.replace(":", "-")
        words = ["train", "--data", f"folder:{shop}", "--out", str(out), "--set", "epochs=1"]
        words += ["--recipe", "scratch", "--set", "preprocess.size=24", "--set", "model.embedding_dim=8"]
        loss = f"loss={{name: '{name}', mining: {{name: 'pml:BatchEasyHardMiner', pos_strategy: hard}}}}"
        lookalike_here(*words, "--set", loss)
        lookalike_here("train", "--out", str(out), "--resume")


def test_miners_refuse_references() -> None:
    for name in ("contrastive", "pml:ContrastiveLoss"):
        module = losses.build({"name": name, "mining": MS_MINER})
        with pytest.raises(ValueError, match="see the batch alone"):
            module(X, Y, ref_embeddings=REF_X, ref_labels=REF_Y)
