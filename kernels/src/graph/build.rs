//! From `config.json` to operations.

use super::*;
use gossamer_backend_api::ops::{
    AddDesc, AllReduceDesc, AttentionDesc, CombineDesc, EmbedDesc, ExpertProductDesc, GemmDesc, KvWriteDesc,
    QuantiseDesc, ResizeDesc, RmsNormDesc, RopeDesc, RouteDesc, SampleDesc, ScaleDesc, SwigluDesc,
};
use gossamer_config::model::SWIGLU_ALPHA;
use gossamer_config::{LayerKind, ModelConfig};

/// What beside the model's configuration shapes its graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphOptions {
    /// Type of the activations.
    pub activation: DType,
    /// Type of the KV cache.
    pub kv: DType,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Most alternatives whose log-probabilities a request can ask for.
    pub max_logprobs: u32,
    /// Whether experts may round activations to E4M3.
    pub allow_fp8_experts: bool,
    /// Whether attention may round queries and probabilities to E4M3.
    pub allow_fp8_attention: bool,
    /// Which part of the model this is. The configuration is that of the part (see [`super::shard`]).
    pub shard: Shard,
}

/// Columns that rows are padded to before fusion, where kernels read codes or write outputs of the experts: the widest tile of columns among
/// grouped products.
pub const PADDING: u32 = 256;

/// Builds the unfused graph of a model.
///
/// On one rank the projection after attention adds onto the residual stream by itself; on several its partial sums are added up over the
/// ranks first.
pub fn build(config: &ModelConfig, options: &GraphOptions) -> Graph {
    Builder::new(config, options).run()
}

struct Builder<'a> {
    config: &'a ModelConfig,
    options: &'a GraphOptions,
    graph: Graph,
}

impl<'a> Builder<'a> {
    fn new(config: &'a ModelConfig, options: &'a GraphOptions) -> Self {
        let (full, sliding) = (config.count(LayerKind::Full), config.count(LayerKind::Sliding));
        let mut windows = Vec::new();
        if full > 0 {
            windows.push(None);
        }
        if sliding > 0 {
            windows.push(Some(config.sliding_window));
        }
        let kv = KvShape {
            planes: full.max(sliding) as u32,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            block_size: options.block_size,
            dtype: options.kv,
        };
        let graph = Graph { nodes: Vec::new(), tensors: Vec::new(), weights: Vec::new(), windows, kv };
        Self { config, options, graph }
    }

    fn tensor(&mut self, name: String, rows: Rows, columns: u32, element: Element) -> TensorId {
        self.graph.tensors.push(Tensor { name, rows, columns, element });
        TensorId(self.graph.tensors.len() as u32 - 1)
    }

    fn activation(&mut self, name: String, columns: u32) -> TensorId {
        self.tensor(name, Rows::Tokens, columns, Element::Float(self.options.activation))
    }

    fn weight(&mut self, name: String, shape: &[u32], element: WeightType, fill: Fill) -> WeightId {
        let shape = shape.iter().map(|extent| u64::from(*extent)).collect();
        self.graph.weights.push(Weight { name, shape, element, fill });
        WeightId(self.graph.weights.len() as u32 - 1)
    }

    fn normal(&mut self, name: String, shape: &[u32], mean: f32, std: f32) -> WeightId {
        self.weight(name, shape, WeightType::Bf16, Fill::Normal { mean, std })
    }

    fn push(&mut self, layer: Option<u32>, op: Op) {
        self.graph.nodes.push(Node { layer, op });
    }

    fn norm_desc(&self) -> RmsNormDesc {
        let config = self.config;
        RmsNormDesc {
            hidden: config.hidden_size,
            eps: config.rms_norm_eps,
            activation: self.options.activation,
        }
    }

    fn run(mut self) -> Graph {
        let config = self.config;
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let activation = self.options.activation;
        let x = self.activation("x".into(), hidden);
        let table = self.normal("model.embed_tokens.weight".into(), &[vocab, hidden], 0.0, 1.0);
        self.push(None, Op::Embed { desc: EmbedDesc { hidden, vocab, activation }, table, out: x });
        let mut planes = [0; 2];
        for (layer, kind) in config.layers.iter().enumerate() {
            let window = (*kind == LayerKind::Sliding).then_some(config.sliding_window);
            let group = self.graph.windows.iter().position(|other| *other == window).unwrap_or(0);
            let place = KvPlace { group: group as u32, plane: planes[group] };
            planes[group] += 1;
            self.attention(layer as u32, x, window, place);
            self.moe(layer as u32, x);
        }
        self.head(x, table);
        self.graph
    }

    fn attention(&mut self, layer: u32, x: TensorId, window: Option<u32>, kv: KvPlace) {
        let config = self.config;
        let (hidden, activation) = (config.hidden_size, self.options.activation);
        let (heads, kv_heads, head_dim) =
            (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let prefix = format!("model.layers.{layer}");
        let at = Some(layer);

        let normed = self.activation(format!("normed.{layer}"), hidden);
        let weight = self.normal(format!("{prefix}.input_layernorm.weight"), &[hidden], 1.0, 0.1);
        self.push(at, Op::RmsNorm { desc: self.norm_desc(), x, weight, out: normed });

        let qkv = self.activation(format!("qkv.{layer}"), config.qkv_columns());
        let columns = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
        let segments = ["q", "k", "v"]
            .iter()
            .zip(columns)
            .map(|(name, rows)| self.linear(&format!("{prefix}.self_attn.{name}_proj"), rows, hidden))
            .collect();
        let desc = self.gemm_desc(hidden, columns, activation);
        self.push(at, Op::Gemm { desc, x: normed, norm_weight: None, segments, residual: None, out: qkv });

        let (block_size, kv_type) = (self.options.block_size, self.options.kv);
        let magnitude = config.rope.magnitude();
        let desc = RopeDesc { heads, kv_heads, head_dim, activation, magnitude };
        self.push(at, Op::Rope { desc, qkv });
        let factor = 1.0 / (head_dim as f32).sqrt();
        let desc = ScaleDesc { columns: columns[0], stride: config.qkv_columns(), activation, factor };
        self.push(at, Op::Scale { desc, x: qkv });
        let desc = KvWriteDesc { heads, kv_heads, head_dim, block_size, activation, kv: kv_type };
        self.push(at, Op::KvWrite { desc, qkv, kv });

        let desc = AttentionDesc {
            heads,
            kv_heads,
            head_dim,
            block_size,
            window: window.unwrap_or(0),
            sinks: 1,
            activation,
            kv: kv_type,
            // Queries are scaled already.
            scale: 1.0,
            single: 0,
            allow_fp8: u32::from(self.options.allow_fp8_attention && kv_type == DType::F8E4M3),
        };
        let sinks = self.normal(format!("{prefix}.self_attn.sinks"), &[heads], 0.0, 1.0);
        let out = self.activation(format!("attended.{layer}"), heads * head_dim);
        self.push(at, Op::Attention { desc, qkv, sinks, kv, out });

        let mut segment = self.linear(&format!("{prefix}.self_attn.o_proj"), hidden, heads * head_dim);
        let desc = self.gemm_desc(heads * head_dim, [hidden, 0, 0], activation);
        if self.options.shard.ranks == 1 {
            let desc = GemmDesc { residual: 1, ..desc };
            let segments = vec![segment];
            self.push(at, Op::Gemm { desc, x: out, norm_weight: None, segments, residual: Some(x), out: x });
            return;
        }
        if self.options.shard.rank > 0 {
            segment.bias = None;
        }
        let partial = self.activation(format!("o-partial.{layer}"), hidden);
        let segments = vec![segment];
        self.push(at, Op::Gemm { desc, x: out, norm_weight: None, segments, residual: None, out: partial });
        self.add(at, partial, x);
    }

    /// Adds onto the residual stream what all ranks have of a sum.
    fn add(&mut self, at: Option<u32>, x: TensorId, residual: TensorId) {
        let (ranks, hidden) = (self.options.shard.ranks, self.config.hidden_size);
        let activation = self.options.activation;
        if ranks > 1 {
            self.push(at, Op::AllReduce { desc: AllReduceDesc { ranks, hidden, activation }, x });
        }
        self.push(at, Op::Add { desc: AddDesc { columns: hidden, activation }, x, residual });
    }

    /// Rows of another width.
    fn resize(
        &mut self,
        at: Option<u32>,
        x: TensorId,
        name: &str,
        (from, to): (u32, u32),
        rows: u32,
    ) -> TensorId {
        if from == to {
            return x;
        }
        let out = self.activation(name.to_owned(), rows * to);
        let desc = ResizeDesc { from, to, rows, activation: self.options.activation };
        self.push(at, Op::Resize { desc, x, out });
        out
    }

    /// Rows padded and rounded to E4M3: codes, scales and columns of a row.
    fn quantise(
        &mut self,
        at: Option<u32>,
        x: TensorId,
        name: &str,
        columns: u32,
        rows: u32,
    ) -> (TensorId, TensorId, u32) {
        let padded = columns.next_multiple_of(PADDING);
        let x = self.resize(at, x, &format!("padded-{name}"), (columns, padded), rows);
        let codes =
            self.tensor(format!("codes-{name}"), Rows::Tokens, rows * padded, Element::Float(DType::F8E4M3));
        let scales = self.tensor(format!("scales-{name}"), Rows::Tokens, rows, Element::Float(DType::F32));
        let desc = QuantiseDesc { columns: padded, padded, rows, activation: self.options.activation };
        self.push(at, Op::Quantise { desc, x, codes, scales });
        (codes, scales, padded)
    }

    fn moe(&mut self, layer: u32, x: TensorId) {
        let config = self.config;
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let (experts, top_k) = (config.num_experts, config.experts_per_token);
        let activation = self.options.activation;
        let prefix = format!("model.layers.{layer}");
        let at = Some(layer);

        let normed = self.activation(format!("moe-normed.{layer}"), hidden);
        let weight = self.normal(format!("{prefix}.post_attention_layernorm.weight"), &[hidden], 1.0, 0.1);
        self.push(at, Op::RmsNorm { desc: self.norm_desc(), x, weight, out: normed });

        let std = 2.0 / (hidden as f32).sqrt();
        let weight = self.normal(format!("{prefix}.mlp.router.weight"), &[experts, hidden], 0.0, std);
        let bias = self.normal(format!("{prefix}.mlp.router.bias"), &[experts], 0.0, 0.5);
        let ids = self.tensor(format!("expert-ids.{layer}"), Rows::Tokens, top_k, Element::Index);
        let weights =
            self.tensor(format!("expert-weights.{layer}"), Rows::Tokens, top_k, Element::Float(DType::F32));
        let desc = RouteDesc { hidden, experts, top_k, activation };
        self.push(at, Op::Route { desc, x: normed, weight, bias, ids, weights });

        let gate_up =
            self.experts(&format!("{prefix}.mlp.experts.gate_up_proj"), 2 * intermediate, hidden, 120);
        let down = self.experts(&format!("{prefix}.mlp.experts.down_proj"), hidden, intermediate, 119);
        let fp8 = self.options.allow_fp8_experts;
        let (input, scales, in_columns) = match fp8 {
            true => {
                let (codes, scales, columns) =
                    self.quantise(at, normed, &format!("normed.{layer}"), hidden, 1);
                (codes, Some(scales), columns)
            }
            false => (normed, None, hidden),
        };
        let raw = self.activation(format!("gate-up.{layer}"), top_k * 2 * intermediate);
        let desc = ExpertProductDesc {
            in_features: hidden,
            in_columns,
            out_features: 2 * intermediate,
            out_columns: 2 * intermediate,
            experts,
            first_expert: 0,
            local_experts: experts,
            top_k,
            per_pair: 0,
            interleaved: 1,
            x: if fp8 { DType::F8E4M3 } else { activation },
            out: activation,
            weight: DType::MXFP4,
        };
        self.push(at, Op::ExpertProduct { desc, x: input, scales, ids, weights: gate_up, out: raw });

        let unit = self.activation(format!("unit.{layer}"), top_k * intermediate);
        let swiglu = SwigluDesc {
            columns: intermediate,
            padded: intermediate,
            rows: top_k,
            limit: config.swiglu_limit,
            alpha: SWIGLU_ALPHA,
            activation,
            out: activation,
        };
        self.push(at, Op::Swiglu { desc: swiglu, x: raw, out: unit, scales: None });
        let (input, scales, in_columns) = match fp8 {
            true => {
                let (codes, scales, columns) =
                    self.quantise(at, unit, &format!("unit.{layer}"), intermediate, top_k);
                (codes, Some(scales), columns)
            }
            false => (unit, None, intermediate),
        };
        let columns = hidden.next_multiple_of(PADDING);
        let out = self.activation(format!("experts-out.{layer}"), top_k * columns);
        let desc = ExpertProductDesc {
            in_features: intermediate,
            in_columns,
            out_features: hidden,
            out_columns: columns,
            per_pair: 1,
            interleaved: 0,
            ..desc
        };
        self.push(at, Op::ExpertProduct { desc, x: input, scales, ids, weights: down, out });

        let sum = self.activation(format!("moe-sum.{layer}"), columns);
        let desc = CombineDesc { columns, top_k, activation };
        self.push(at, Op::Combine { desc, experts_out: out, weights, out: sum });
        let sum = self.resize(at, sum, &format!("moe-out.{layer}"), (columns, hidden), 1);
        self.add(at, sum, x);
    }

    fn head(&mut self, x: TensorId, table: WeightId) {
        let config = self.config;
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let normed = self.activation("normed".into(), hidden);
        let weight = self.normal("model.norm.weight".into(), &[hidden], 1.0, 0.1);
        self.push(None, Op::RmsNorm { desc: self.norm_desc(), x, weight, out: normed });
        let std = 2.0 / (hidden as f32).sqrt();
        let head = match config.tie_word_embeddings {
            true => table,
            false => self.normal("lm_head.weight".into(), &[vocab, hidden], 0.0, std),
        };
        let logits = self.tensor("logits".into(), Rows::Samples, vocab, Element::Float(DType::F32));
        let desc = GemmDesc { gather: 1, ..self.gemm_desc(hidden, [vocab, 0, 0], DType::F32) };
        let segments = vec![SegmentIds { weight: head, bias: None }];
        let gemm = Op::Gemm { desc, x: normed, norm_weight: None, segments, residual: None, out: logits };
        self.push(None, gemm);
        let desc = SampleDesc {
            vocab,
            vocab_offset: 0,
            logits: DType::F32,
            max_logprobs: self.options.max_logprobs,
        };
        self.push(None, Op::Sample { desc, logits });
    }

    fn gemm_desc(&self, in_features: u32, out_features: [u32; 3], out: DType) -> GemmDesc {
        GemmDesc {
            in_features,
            out_features,
            activation: self.options.activation,
            out,
            weight: DType::BF16,
            norm: 0,
            eps: self.config.rms_norm_eps,
            residual: 0,
            gather: 0,
        }
    }

    fn linear(&mut self, name: &str, rows: u32, columns: u32) -> SegmentIds {
        let std = 1.0 / (columns as f32).sqrt();
        let weight = self.normal(format!("{name}.weight"), &[rows, columns], 0.0, std);
        let bias = Some(self.normal(format!("{name}.bias"), &[rows], 0.0, 0.1));
        SegmentIds { weight, bias }
    }

    /// `exponent` is the scale that keeps outputs near 1 at a width of 2880.
    fn experts(&mut self, name: &str, rows: u32, columns: u32, exponent: i32) -> ExpertWeightIds {
        let experts = self.config.num_experts;
        let shift = (2880.0 / columns as f32).log2() / 2.0;
        let middle = (exponent + shift.round() as i32) as u8;
        ExpertWeightIds {
            blocks: self.weight(
                format!("{name}_blocks"),
                &[experts, rows, columns / 32, 16],
                WeightType::U8,
                Fill::Codes,
            ),
            scales: self.weight(
                format!("{name}_scales"),
                &[experts, rows, columns / 32],
                WeightType::U8,
                Fill::Scales { middle },
            ),
            bias: self.normal(format!("{name}_bias"), &[experts, rows], 0.0, 0.1),
        }
    }
}
