"""What every kind of tuning promises."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.backbone import Backbone, Departure, Layers, Shape, Tuning
from ease.errors import EaseError
from ease.tuning import TUNINGS, Full, PrefixPerImage, PromptsPerImage, build_tuning
from tests.backbone.small_vits import assert_close, randomised, small_backbone, some_images

BACKBONE = small_backbone()
SHAPE = BACKBONE.shape
L, D, H = SHAPE.depth, SHAPE.dim, SHAPE.hidden

# kind, settings, parameter count
KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("adapter", {"rank": 4}, L * (2 * D * 4 + 4 + D)),
    ("adapter", {"rank": 3, "bias": False, "reads": "normed", "scale": 1.0}, L * 2 * D * 3),
    ("vpt-shallow", {"length": 3}, 3 * D),
    ("vpt-shallow", {"length": 2, "init": "normal"}, 2 * D),
    ("vpt-deep", {"length": 3}, L * 3 * D),
    ("ssf", {}, 4 * D + 2 * L * (7 * D + H)),
    ("prefix", {"length": 4}, L * 2 * 4 * D),
    ("prefix", {"length": 2, "layers": [1, 2]}, 2 * 2 * 2 * D),
    ("lora", {"rank": 2}, L * 2 * 4 * D),
    ("lora", {"rank": 2, "alpha": 1, "sites": ["proj", "fc1", "fc2"]}, L * 2 * (2 * D + 2 * (D + H))),
    ("attention-adapter", {"rank": 4}, L * (2 * D * 4 + 4 + D + 1)),
    ("attention-adapter", {"rank": 2, "layers": [1]}, 2 * D * 2 + 2 + D + 1),
    ("kv-lora", {"rank": 3}, L * (4 * 3 * D + 2)),
    ("kv-lora", {"rank": 2, "layers": [0, 1]}, 2 * (4 * 2 * D + 2)),
    ("compensated-prefix", {"length": 4}, L * (2 * 4 * D + 2)),
    ("compensated-prefix", {"length": 2, "layers": [1, 2]}, 2 * (2 * 2 * D + 2)),
    ("full", {}, BACKBONE.parameter_count()),
    ("full", {"blocks": [1]}, sum(p.numel() for p in BACKBONE.vit.blocks[1].parameters()) + 2 * D),
]
STARTS_AS_PTM = {"adapter", "attention-adapter", "lora", "kv-lora", "full"}
LAE = ("attention-adapter", "kv-lora", "compensated-prefix")
IN_ROWS = ("ssf", "lora", "prefix", "vpt-deep", *LAE)
every_kind = pytest.mark.parametrize(("kind", "config", "count"), KINDS)


def build(kind: str, config: dict[str, Any], seed: int = 0) -> Tuning:
    return build_tuning(kind, SHAPE, config, torch.Generator().manual_seed(seed), vit=BACKBONE.vit)


def trained(kind: str, config: dict[str, Any], seed: int = 1) -> Tuning:
    """As if trained: far from its start."""
    return randomised(build(kind, config), seed).eval()


@every_kind
def test_the_last_layer_read_is_the_pooled_feature_and_the_patches_without_prompts(
    kind: str, config: dict[str, Any], count: int, images: Tensor
) -> None:
    tuning = trained(kind, config)
    tokens = BACKBONE.features(images, [tuning], "tokens")[0]
    prompts = tokens.shape[1] - 17
    patches = tokens[:, 1 + prompts :].mean(dim=1)
    read = BACKBONE.features(images, [tuning], Layers(L, patches=True))[0]
    assert_close(read[:, (L - 1) * D : L * D], BACKBONE.features(images, [tuning])[0])
    assert_close(read[:, -D:], patches)
    assert_close(BACKBONE.features(images, [tuning], Layers(L))[0], read[:, : L * D])


def test_every_kind_is_here() -> None:
    assert {kind for kind, _, _ in KINDS} == set(TUNINGS)


@every_kind
def test_parameter_count_is_the_formula(kind: str, config: dict[str, Any], count: int) -> None:
    assert build(kind, config).parameter_count() == count


def test_ssf_on_vit_b_has_a_fifth_of_a_million() -> None:
    assert build_tuning("ssf", Shape(768, 12, 12, 3072)).parameter_count() == 205_824


@every_kind
def test_a_twin_built_from_the_configuration_takes_the_weights(
    kind: str, config: dict[str, Any], count: int
) -> None:
    tuning = trained(kind, config, 3)
    written = json.loads(json.dumps(tuning.config()))
    twin = build_tuning(tuning.kind, SHAPE, written, vit=BACKBONE.vit)
    assert twin.fingerprint() != tuning.fingerprint()
    twin.load_state_dict(tuning.state_dict())
    assert twin.fingerprint() == tuning.fingerprint()
    assert_close(BACKBONE.features(some_images(), [twin]), BACKBONE.features(some_images(), [tuning]))


@every_kind
def test_the_start_comes_from_the_generator_alone(kind: str, config: dict[str, Any], count: int) -> None:
    before = torch.get_rng_state()
    first, same, other = build(kind, config, 1), build(kind, config, 1), build(kind, config, 2)
    assert torch.equal(torch.get_rng_state(), before), "the global generator was not touched"
    assert first.fingerprint() == same.fingerprint()
    drawn = kind != "full" and not (kind.startswith("vpt") and config.get("init") != "normal")
    assert (first.fingerprint() != other.fingerprint()) is drawn


@every_kind
def test_the_start_is_the_ptm_or_near_it(
    kind: str, config: dict[str, Any], count: int, images: Tensor
) -> None:
    """On a well-conditioned model, as documented by each kind."""
    ptm, start = BACKBONE.features(images, [None, build(kind, config)])
    off = (start - ptm).abs().max()
    if kind in STARTS_AS_PTM:
        assert_close(start, ptm)
    else:
        assert 0 < off < 0.6 * ptm.abs().max()


def test_ssf_without_noise_starts_as_the_ptm(images: Tensor) -> None:
    ptm, start = BACKBONE.features(images, [None, build("ssf", {"std": 0.0})])
    assert_close(start, ptm)


@every_kind
@pytest.mark.parametrize("reading", ["pooled", "tokens"])
def test_gradients_reach_every_weight_and_nothing_else(
    kind: str, config: dict[str, Any], count: int, reading: Any, images: Tensor
) -> None:
    tuning = trained(kind, config)
    weights = torch.randn(D, generator=torch.Generator().manual_seed(1))
    (BACKBONE.forward(images, tuning, reading).square() @ weights).sum().backward()
    for name, parameter in tuning.named_parameters():
        assert parameter.grad is not None, name
        # A stacked tensor has one row per block: each must have its share.
        rows = parameter.grad if kind in IN_ROWS else parameter.grad[None]
        assert all(row.abs().max() > 0 for row in rows), name
    assert all(p.grad is None for p in BACKBONE.vit.parameters())


@every_kind
def test_it_changes_the_feature(kind: str, config: dict[str, Any], count: int, images: Tensor) -> None:
    ptm, tuned = BACKBONE.features(images, [None, trained(kind, config)])
    assert (tuned - ptm).abs().max() > 1e-2


def test_a_prompt_token_starting_at_zero_can_learn(images: Tensor) -> None:
    new = build("vpt-deep", {"length": 2})
    BACKBONE.forward(images, new).square().sum().backward()
    for parameter in new.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert (parameter.grad.abs().amax(dim=(1, 2)) > 0).all()


POOL: list[Tuning | None] = [None, *(trained(k, c, i + 1) for i, (k, c, _) in enumerate(KINDS))]
POOL += [trained("adapter", {"rank": 9}, 20), trained("vpt-deep", {"length": 3}, 21)]


@settings(max_examples=30, deadline=None)
@given(
    chosen=st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=8),
    count=st.integers(1, 3),
)
def test_all_kinds_mixed_equal_separate_passes(chosen: list[int], count: int) -> None:
    images, tunings = some_images(count), [POOL[i] for i in chosen]
    with torch.no_grad():
        apart = torch.stack([BACKBONE.forward(images, t) for t in tunings])
    assert_close(BACKBONE.features(images, tunings), apart)


@pytest.mark.parametrize(
    "override",
    [
        {"global_pool": "avg"},
        {"global_pool": "map", "class_token": False},
        {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.5},
        {"pre_norm": True, "qk_norm": True, "dynamic_img_size": True},
    ],
)
def test_all_kinds_on_other_vits(override: dict[str, Any], images: Tensor) -> None:
    backbone = small_backbone(**override)
    tunings: list[Tuning | None] = [
        randomised(build_tuning(k, backbone.shape, c, vit=backbone.vit), i).eval()
        for i, (k, c, _) in enumerate(KINDS)
    ]
    together = backbone.features(images, tunings)
    with torch.no_grad():
        apart = torch.stack([backbone.forward(images, t) for t in tunings])
    assert_close(together, apart)
    assert torch.isfinite(together).all()


def test_low_precision_works_for_all_kinds(images: Tensor) -> None:
    exact = BACKBONE.features(images, POOL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = BACKBONE.features(images, POOL)
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.3 * exact.abs().max()


def test_unknown_kinds_and_settings_name_the_nearest() -> None:
    for kind, config, message in [
        ("adaptor", {}, "did you mean 'adapter'"),
        ("adapter", {"rnak": 3}, "did you mean 'rank'"),
        ("adapter", {"rank": 0}, "rank must be at least 1"),
        ("vpt-deep", {"length": 0}, "length must be at least 1"),
        ("vpt-deep", {"init": "zeros"}, "did you mean 'zero'"),
        ("lora", {"sites": ["qvk"]}, "did you mean 'qkv'"),
        ("prefix", {"layers": [3]}, "0 to 2"),
        ("prefix", {"layers": []}, "0 to 2"),
        ("kv-lora", {"layers": [-1]}, "0 to 2"),
        ("attention-adapter", {"layers": [0, 3]}, "0 to 2"),
        ("compensated-prefix", {"layers": [3]}, "0 to 2"),
    ]:
        with pytest.raises(EaseError, match=message):
            build(kind, config)
    with pytest.raises(EaseError, match="needs the model"):
        build_tuning("full", SHAPE, {})


@pytest.mark.parametrize(("kind", "config"), [("ssf", {}), ("lora", {"sites": ["fc1"]})])
def test_a_gated_mlp_has_no_ports_inside(kind: str, config: dict[str, Any]) -> None:
    from timm.layers import GluMlp

    gated = small_backbone(mlp_layer=GluMlp)
    assert gated.shape.hidden == 0
    with pytest.raises(EaseError, match="gated"):
        build_tuning(kind, gated.shape, config)


class TestFolded:
    """Two kinds can be folded into the frozen weights: timm's own model must then give the same feature."""

    def test_lora(self, images: Tensor) -> None:
        tuning = trained("lora", {"rank": 2, "alpha": 3, "sites": ["qkv", "proj", "fc1", "fc2"]})
        vit = copy.deepcopy(BACKBONE.vit)
        with torch.no_grad():
            for layer, block in enumerate(vit.blocks):
                for site, linear in linears(block).items():
                    linear.weight += 1.5 * tuning.b[site][layer] @ tuning.a[site][layer]
        assert_close(BACKBONE.features(images, [tuning])[0], pre_logits(vit, images))

    def test_kv_lora(self, images: Tensor) -> None:
        tuning = trained("kv-lora", {"rank": 2, "layers": [0, 2]})
        vit = copy.deepcopy(BACKBONE.vit)
        with torch.no_grad():
            for row, layer in enumerate([0, 2]):
                for part in range(2):  # the query, which comes first, stays as it is
                    rows = slice((part + 1) * D, (part + 2) * D)
                    update = tuning.b[row, part] @ tuning.a[row, part] * tuning.scale[row, part]
                    vit.blocks[layer].attn.qkv.weight[rows] += update
        assert_close(BACKBONE.features(images, [tuning])[0], pre_logits(vit, images))

    def test_ssf(self, images: Tensor) -> None:
        tuning = trained("ssf", {})
        vit = copy.deepcopy(BACKBONE.vit)

        def fold(module: Any, site: str, layer: int) -> None:
            scale, shift = tuning.scale[site][layer], tuning.shift[site][layer]
            module.weight.mul_(scale.view(-1, *[1] * (module.weight.ndim - 1)))
            module.bias.mul_(scale).add_(shift)

        with torch.no_grad():
            fold(vit.patch_embed.proj, "embed", 0)
            fold(vit.norm, "norm", 0)
            for layer, block in enumerate(vit.blocks):
                for site, module in {"norm1": block.norm1, "norm2": block.norm2, **linears(block)}.items():
                    fold(module, site, layer)
        assert_close(BACKBONE.features(images, [tuning])[0], pre_logits(vit, images))


class TestVpt:
    def test_prompts_stand_behind_the_class_token(self, images: Tensor) -> None:
        shallow = trained("vpt-shallow", {"length": 3})
        tokens = BACKBONE.features(images, [shallow], reading="tokens")[0]
        assert tokens.shape == (4, 1 + 3 + 16, D)
        assert_close(BACKBONE.features(images, [shallow])[0], tokens[:, 0])

    def test_shallow_is_a_sequence_with_more_tokens(self, images: Tensor) -> None:
        """Against timm's own blocks."""
        shallow, vit = trained("vpt-shallow", {"length": 3}), BACKBONE.vit
        with torch.no_grad():
            x = vit._pos_embed(vit.patch_embed(images))
            more = shallow.prompts(0, len(images))
            assert more is not None
            x = vit.norm(vit.blocks(torch.cat([x[:, :1], more, x[:, 1:]], dim=1)))
        assert_close(BACKBONE.features(images, [shallow], reading="tokens")[0], x)

    def test_deep_discards_what_comes_out_of_each_block(self, images: Tensor) -> None:
        deep, vit = trained("vpt-deep", {"length": 3}), BACKBONE.vit
        with torch.no_grad():
            x = vit._pos_embed(vit.patch_embed(images))
            for layer, block in enumerate(vit.blocks):
                more = deep.prompts(layer, len(images))
                assert more is not None
                out = block(torch.cat([x[:, :1], more, x[:, 1:]], dim=1))
                x = torch.cat([out[:, :1], out[:, 4:]], dim=1)
            assert_close(BACKBONE.features(images, [deep])[0], vit.norm(x)[:, 0])

    def test_mean_pooling_does_not_see_the_prompts(self, images: Tensor) -> None:
        backbone = small_backbone(global_pool="avg", class_token=False)
        shallow = randomised(build_tuning("vpt-shallow", backbone.shape, {"length": 3})).eval()
        tokens = backbone.features(images, [shallow], reading="tokens")[0]
        pooled = backbone.vit.fc_norm(tokens[:, 3:].mean(dim=1))
        assert_close(backbone.features(images, [shallow])[0], pooled.detach())


class TestBesideAttention:
    """The tunings of LAE that are no change of weights, against blocks written out by hand."""

    def test_the_adapter_reads_norm1_and_is_added_to_the_attention(self, images: Tensor) -> None:
        tuning, vit = trained("attention-adapter", {"rank": 3, "layers": [1]}), BACKBONE.vit
        block = vit.blocks[1]
        with torch.no_grad():
            x = vit.blocks[0](vit._pos_embed(vit.patch_embed(images)))
            read = block.norm1(x)
            hidden = torch.nn.functional.gelu(read @ tuning.down[0].T + tuning.down_bias[0])
            x = x + block.attn(read) + tuning.scale[0] * (hidden @ tuning.up[0].T + tuning.up_bias[0])
            x = x + block.mlp(block.norm2(x))
            expected = vit.norm(vit.blocks[2](x))[:, 0]
        assert_close(BACKBONE.features(images, [tuning])[0], expected)

    def test_a_compensated_prefix_has_a_share_of_one_beside_the_tokens(self, images: Tensor) -> None:
        tuning, vit = trained("compensated-prefix", {"length": 3, "layers": [2]}), BACKBONE.vit
        block, heads = vit.blocks[2], SHAPE.heads

        def split(rows: Tensor) -> Tensor:
            return rows.unflatten(-1, (heads, D // heads)).transpose(1, 2)

        with torch.no_grad():
            x = vit.blocks[1](vit.blocks[0](vit._pos_embed(vit.patch_embed(images))))
            q, k, v = block.attn.qkv(block.norm1(x)).chunk(3, dim=-1)
            keys = (tuning.key_scale[0] * tuning.keys[0]).expand(4, -1, -1)
            values = (tuning.value_scale[0] * tuning.values[0]).expand(4, -1, -1)
            # Behind the class token, where the released code puts them; their place does not matter.
            k = torch.cat([k[:, :1], keys, k[:, 1:]], dim=1)
            v = torch.cat([v[:, :1], values, v[:, 1:]], dim=1)
            shares = (split(q) @ split(k).mT * block.attn.head_dim**-0.5).softmax(dim=-1)
            shares[..., 1:4] /= shares[..., 1:4].sum(dim=-1, keepdim=True)
            out = (shares @ split(v)).transpose(1, 2).flatten(2)
            x = x + block.attn.proj(out)
            expected = vit.norm(x + block.mlp(block.norm2(x)))[:, 0]
        assert_close(BACKBONE.features(images, [tuning])[0], expected)

    def test_counts_of_the_paper(self) -> None:
        shape, layers = Shape(768, 12, 12, 3072), {"layers": list(range(5))}
        counts = [build_tuning(kind, shape, layers).parameter_count() for kind in LAE]
        assert counts == [42_270, 76_810, 76_810]


class TestPerImage:
    def test_each_image_has_prompts_of_its_own(self, images: Tensor) -> None:
        tokens = torch.randn(4, 2, D, generator=torch.Generator().manual_seed(1))
        whole = BACKBONE.features(images, [PromptsPerImage(tokens)])
        for n in range(4):
            alone = BACKBONE.features(images[n : n + 1], [PromptsPerImage(tokens[n : n + 1])])
            assert_close(whole[:, n : n + 1], alone)

    def test_the_same_prompts_for_all_are_vpt(self, images: Tensor) -> None:
        shallow = trained("vpt-shallow", {"length": 3})
        given = PromptsPerImage(shallow.tokens[0].expand(4, -1, -1))
        assert_close(*BACKBONE.features(images, [given, shallow]))
        assert given.parameter_count() == 0

    def test_the_same_keys_and_values_for_all_are_a_prefix(self, images: Tensor) -> None:
        static = trained("prefix", {"length": 2, "layers": [1, 2]})
        pairs = {
            layer: (static.keys[row].detach(), static.values[row].detach().expand(4, -1, -1))
            for row, layer in enumerate([1, 2])
        }
        assert_close(*BACKBONE.features(images, [PrefixPerImage(pairs), static]))

    def test_prompts_can_be_made_from_the_tokens_that_enter_a_block(self, images: Tensor) -> None:
        """Two prompts in the first block, one in the second, none in the third: earlier ones go."""
        seen: list[tuple[int, int, int]] = []

        class FromTokens(Tuning):
            kind = "from-tokens"
            departs = Departure.EMBEDDING

            def prompts_among(self, layer: int, tokens: Tensor, front: int, present: int) -> Tensor | None:
                seen.append((tokens.shape[1], front, present))
                bare = torch.cat([tokens[:, :front], tokens[:, front + present :]], dim=1)
                return bare[:, 1 : 3 - layer] * 2.0

        vit = BACKBONE.vit
        with torch.no_grad():
            x = vit._pos_embed(vit.patch_embed(images))
            for count, block in zip((2, 1, 0), vit.blocks, strict=True):
                made = x[:, 1 : 1 + count] * 2.0
                x = block(torch.cat([x[:, :1], made, x[:, 1:]], dim=1))
                x = torch.cat([x[:, :1], x[:, 1 + count :]], dim=1)
        assert_close(BACKBONE.features(images, [FromTokens()], "tokens")[0], vit.norm(x))
        assert seen == [(17, 1, 0), (19, 1, 2), (18, 1, 1)]

    def test_gradients_pass_to_whoever_chose(self, images: Tensor) -> None:
        pool = torch.randn(6, 2, D, requires_grad=True)
        chosen = pool[torch.tensor([0, 3, 3, 5])]
        BACKBONE.forward(images, PromptsPerImage(chosen)).square().sum().backward()
        assert pool.grad is not None
        assert (pool.grad.abs().amax(dim=(1, 2)) > 0).tolist() == [True, False, False, True, False, True]


class TestSharing:
    def test_kinds_depart_where_the_design_says(self) -> None:
        assert TUNINGS["adapter"].departs == Departure.BRANCH
        for kind in ("vpt-shallow", "vpt-deep", "prefix", "lora", *LAE):
            assert TUNINGS[kind].departs == Departure.EMBEDDING
        assert TUNINGS["ssf"].departs == Departure.NOTHING
        assert Full(BACKBONE.vit).departs == Departure.NOTHING

    def test_the_embedding_is_computed_once_for_all_that_share_it(self, images: Tensor) -> None:
        assert embeddings(BACKBONE, images, [t for t in POOL if t is None or t.departs > 0]) == 1
        assert embeddings(BACKBONE, images, POOL) == 2, "ssf has one of its own, full too but in its own copy"

    def test_blocks_before_the_first_prefix_are_shared(self, images: Tensor) -> None:
        calls: list[int] = []
        hook = BACKBONE.vit.blocks[0].attn.qkv.register_forward_hook(lambda *_: calls.append(1))
        BACKBONE.features(images, [trained("prefix", {"layers": [1, 2]}, i) for i in range(3)])
        hook.remove()
        assert len(calls) == 1


def linears(block: Any) -> dict[str, Any]:
    return {"qkv": block.attn.qkv, "proj": block.attn.proj, "fc1": block.mlp.fc1, "fc2": block.mlp.fc2}


def pre_logits(vit: Any, images: Tensor) -> Tensor:
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(images), pre_logits=True)


def embeddings(backbone: Backbone, images: Tensor, tunings: list[Tuning | None]) -> int:
    calls: list[int] = []
    hook = backbone.vit.patch_embed.register_forward_hook(lambda *_: calls.append(1))
    backbone.features(images, tunings)
    hook.remove()
    return len(calls)
