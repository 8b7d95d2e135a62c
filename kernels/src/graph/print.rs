//! The graph for people: as text and as SVG. Layers that are alike are shown once.

use super::{Element, Graph, Node, Op, Rows, SegmentIds, TensorId};
use gossamer_backend_api::DType;
use gossamer_backend_api::ops::GemmDesc;
use std::fmt::Write;

/// Consecutive operations of alike layers, or of none.
struct Section<'a> {
    title: String,
    nodes: Vec<&'a Node>,
}

impl Graph {
    /// Lines of text: a heading per kind of layer, then one line per operation.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for section in self.sections() {
            let _ = writeln!(out, "{}", section.title);
            for node in section.nodes {
                let (name, flow, detail) = self.describe(&node.op);
                let _ = writeln!(out, "  {name:<15} {flow:<68} {detail}");
            }
        }
        let kv = &self.kv;
        let _ = writeln!(
            out,
            "{} operations, {:.2} GB of weights, KV cache {} in {} planes, {} bytes a token in all of them",
            self.nodes.len(),
            self.weight_bytes() as f64 / 1e9,
            kv.dtype,
            kv.planes,
            kv.block_bytes() / u64::from(kv.block_size) * u64::from(kv.planes),
        );
        out
    }

    /// One column of boxes, top to bottom.
    pub fn svg(&self, title: &str) -> String {
        const ROW: u32 = 30;
        let mut body = String::new();
        let mut y = 40;
        let text = |body: &mut String, x: u32, y: u32, class: &str, text: &str| {
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(body, "<text x='{x}' y='{y}' class='{class}'>{text}</text>");
        };
        text(&mut body, 12, 24, "t", title);
        for section in self.sections() {
            text(&mut body, 12, y + 16, "h", &section.title);
            y += ROW - 4;
            for node in section.nodes {
                let (name, flow, detail) = self.describe(&node.op);
                let _ = writeln!(body, "<rect x='24' y='{y}' width='130' height='22' rx='4'/>");
                text(&mut body, 32, y + 15, "n", name);
                text(&mut body, 166, y + 15, "f", &flow);
                text(&mut body, 600, y + 15, "f", &detail);
                y += ROW;
            }
        }
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='1130' height='{}' font-family='sans-serif' \
             font-size='12'>\n<style>rect{{fill:#e8eef7;stroke:#4a6fa5}}.t{{font-size:16px;font-weight:bold}}\
             .h{{font-weight:bold}}.n{{font-weight:bold}}.f{{fill:#333}}</style>\n\
             <rect width='100%' height='100%' style='fill:#fff;stroke:none'/>\n{body}</svg>\n",
            y + 12
        )
    }

    fn sections(&self) -> Vec<Section<'_>> {
        let mut runs: Vec<(Option<u32>, Vec<&Node>)> = Vec::new();
        for node in &self.nodes {
            match runs.last_mut() {
                Some((layer, nodes)) if *layer == node.layer => nodes.push(node),
                _ => runs.push((node.layer, vec![node])),
            }
        }
        let mut sections: Vec<(Vec<u32>, Vec<&Node>)> = Vec::new();
        for (layer, nodes) in runs {
            let alike = |other: &&mut (Vec<u32>, Vec<&Node>)| {
                layer.is_some()
                    && !other.0.is_empty()
                    && other.1.iter().map(|node| node.op.desc()).eq(nodes.iter().map(|node| node.op.desc()))
            };
            match sections.iter_mut().find(alike) {
                Some(section) => section.0.extend(layer),
                None => sections.push((layer.into_iter().collect(), nodes)),
            }
        }
        let title = |layers: &[u32]| match layers {
            [] => "outside the layers".to_owned(),
            [layer] => format!("layer {layer}"),
            several => {
                let names: Vec<_> = several.iter().map(u32::to_string).collect();
                format!("layers {}", names.join(", "))
            }
        };
        sections.into_iter().map(|(layers, nodes)| Section { title: title(&layers), nodes }).collect()
    }

    /// Name, operands and options of an operation.
    fn describe(&self, op: &Op) -> (&'static str, String, String) {
        let flow = |ids: Vec<TensorId>| {
            let names: Vec<_> = ids.iter().map(|id| self.shape(*id)).collect();
            names.join(" ")
        };
        let name = op.desc().kind().label();
        let operands = match op.reads() {
            reads if reads.is_empty() => flow(op.writes()),
            reads => format!("{} -> {}", flow(reads), flow(op.writes())),
        };
        (name, operands, self.detail(op))
    }

    fn detail(&self, op: &Op) -> String {
        let mut parts = Vec::new();
        match op {
            Op::Gemm { desc, segments, .. } => parts.extend(product(desc, segments)),
            Op::QkvRope { desc, segments, kv, .. } => {
                parts.extend(product(&desc.product, segments));
                parts.push(format!("group {} from plane {}", kv.group, kv.plane));
            }
            Op::RopeKvWrite { kv, .. } => {
                parts.push(format!("group {} from plane {}", kv.group, kv.plane));
            }
            Op::Attention { desc, kv, .. } => {
                parts.push(format!("{} heads over {}", desc.heads, desc.kv_heads));
                parts.push(match desc.window {
                    0 => "full".to_owned(),
                    window => format!("window {window}"),
                });
                parts.push("sinks".to_owned());
                parts.push(format!("group {} from plane {}", kv.group, kv.plane));
            }
            Op::Route { desc, .. } => parts.push(format!("{} of {}", desc.top_k, desc.experts)),
            Op::Experts { desc, .. } => {
                parts.push(format!("intermediate {}", desc.intermediate));
                parts.extend((desc.allow_fp8 == 1).then(|| "may quantise".to_owned()));
            }
            Op::FusedMoe { desc, .. } => {
                parts.push(format!("norm, {} of {}", desc.route.top_k, desc.route.experts));
                parts.push(format!("intermediate {}", desc.experts.intermediate));
            }
            Op::Embed { desc, .. } => parts.push(format!("{} rows", desc.vocab)),
            Op::KvWrite { kv, .. } => parts.push(format!("group {} from plane {}", kv.group, kv.plane)),
            Op::Scale { desc, .. } => parts.push(format!("queries by {:.4}", desc.factor)),
            Op::Resize { desc, .. } => {
                let how = if desc.to > desc.from { "pads" } else { "slices" };
                parts.push(format!("{how} {} to {}", desc.from, desc.to));
            }
            Op::Quantise { desc, .. } => {
                parts.push(format!("a scale per {}", if desc.rows == 1 { "token" } else { "choice" }));
                parts.extend(
                    (desc.padded > desc.columns).then(|| format!("pads {} to {}", desc.columns, desc.padded)),
                );
            }
            Op::Swiglu { desc, .. } => {
                parts.push(format!("clamped at {}", desc.limit));
                parts.extend((desc.out == DType::F8E4M3).then(|| "quantises".to_owned()));
                parts.extend(
                    (desc.padded > desc.columns).then(|| format!("pads {} to {}", desc.columns, desc.padded)),
                );
            }
            Op::ExpertProduct { desc, .. } => {
                parts.push(format!("{} x {}", desc.out_features, desc.in_features));
                parts.push(format!("{} of {}", desc.top_k, desc.experts));
            }
            Op::AllReduce { desc, .. } => parts.push(format!("over {} ranks", desc.ranks)),
            Op::AllReduceNorm { desc, .. } => {
                parts.push(format!("over {} ranks, adds the residual, norm", desc.reduce.ranks));
            }
            Op::RmsNorm { .. }
            | Op::Finalize { .. }
            | Op::Sample { .. }
            | Op::Rope { .. }
            | Op::Combine { .. }
            | Op::Add { .. } => {}
        }
        parts.join(", ")
    }

    fn shape(&self, id: TensorId) -> String {
        let tensor = self.tensor(id);
        let name = tensor.name.split('.').next().unwrap_or_default();
        let rows = if tensor.rows == Rows::Tokens { 'T' } else { 'R' };
        match tensor.element {
            Element::Index => format!("{name}[{rows},{}]u32", tensor.columns),
            Element::Float(dtype) => {
                let short = match dtype {
                    DType::F32 => "f32",
                    DType::BF16 => "bf16",
                    DType::F8E4M3 => "e4m3",
                    _ => "?",
                };
                format!("{name}[{rows},{}]{short}", tensor.columns)
            }
        }
    }
}

/// Shape and options of a dense product.
fn product(desc: &GemmDesc, segments: &[SegmentIds]) -> Vec<String> {
    let mut parts = vec![format!("{} x {}", desc.columns(), desc.in_features)];
    parts.extend((segments.len() > 1).then(|| format!("{} segments", segments.len())));
    parts.extend((desc.norm == 1).then(|| "norm before".to_owned()));
    parts.extend((desc.gather == 1).then(|| "of the drawn rows".to_owned()));
    parts.extend((desc.residual == 1).then(|| "adds the residual".to_owned()));
    parts
}
