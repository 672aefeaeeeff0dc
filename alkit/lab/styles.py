"""How figures show methods, tasks and data sets, as plain data."""

import seaborn as sns

# colours and markers go round by place, so a new name goes to the end
METHODS = """
    al al_m al_fm al_pipeline local local_pipeline bp
    fixed_codes linear cosine predsim dgl scpl
    seq ddg ddg_barrier ddg_inplace fr fr_barrier fr_1f1b
    pipedream pipedream_recompute pipedream_sync pipedream_inplace 2bw
    gpipe 1f1b zero_bubble interleaved_1f1b looped_bfs zbv dualpipev torch_1f1b
    fed central splitfed pipelearn
    ddp ddp_fewer ddp_freeze_cache one_freeze_cache head_cache
    freeze freeze_pipe_cache freeze_pipe_dp elastic
    dtp dtp_exact dtp_matched dtp_frozen dtp_fused dtp_fixed vanilla_dtp tp fa dfa shallow
    dtp_orthogonal ddtp fsdp ddp_checkpoint ddp_lora
""".split()
BASELINES = ("bp", "seq", "central")  # grey
MARKERS = "osv^<>DPXp*"  # as many as share no divisor with the colours: no two names look alike
CAPITALS = "1f1b al bfs bp ddg ddp ddtp dfa dgl dp dtp fa fr fsdp lstm scpl tp vgg zbv".split()
WORDS = {
    "2bw": "PipeDream-2BW",
    "al_fm": "AL-FM",
    "al_m": "AL-M",
    "cosine": "cosine heads",
    "dualpipev": "DualPipeV",
    "fed": "federated",
    "fixed_codes": "local classifiers, fixed codes",
    "gpipe": "GPipe",
    "linear": "linear heads",
    "lora": "LoRA",
    "local": "local classifiers",
    "original": "as published",
    "pipedream": "PipeDream",
    "pipelearn": "PipeLearn",
    "seq": "sequential",
    "splitfed": "SplitFed",
    # data and networks
    "ag_news": "AG News",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "dbpedia": "DBpedia",
    "imdb": "IMDb",
    "resnet": "ResNet-18",
    "resnet20": "ResNet-20",
    "sst2": "SST-2",
    "tiny_imagenet": "Tiny ImageNet",
}
WORDS |= {word: word.upper() for word in CAPITALS}
KINDS = dict(
    zip(
        "forward backward update backward_input backward_weight send learn target".split(),
        sns.color_palette("pastel").as_hex(),
        strict=False,
    )
)
