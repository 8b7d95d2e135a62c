//! Which backends may do an operation: what they can, and what the command line forces.

use gossamer_backend_api::{KernelBackend, OpDesc, OpKind, Support};
use std::sync::Arc;
use thiserror::Error;

/// Why no backend could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// A flag names a backend that is not loaded.
    #[error("{flag} {name}: no such backend is loaded; loaded are: {loaded}")]
    NotLoaded {
        /// The flag.
        flag: &'static str,
        /// The name.
        name: String,
        /// Names of those loaded.
        loaded: String,
    },
    /// The forced backend cannot do what the model needs.
    #[error("{flag} {name} cannot run this model: {operation}: {reason}; backends that can: {able}")]
    Forced {
        /// The flag.
        flag: &'static str,
        /// The backend.
        name: String,
        /// The operation.
        operation: &'static str,
        /// What the backend said.
        reason: String,
        /// Names of those that can, or `none`.
        able: String,
    },
    /// No loaded backend can do it.
    #[error("no loaded backend can do {operation}: {reasons}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// What each backend said.
        reasons: String,
    },
}

/// The loaded backends and the choice among them.
#[derive(Clone)]
pub struct Backends {
    list: Vec<Arc<dyn KernelBackend>>,
    moe: Option<usize>,
    attention: Option<usize>,
}

impl Backends {
    /// `moe` and `attention` are the values of `--moe-backend` and `--attention-backend`; `None` is automatic.
    pub fn new(
        list: Vec<Arc<dyn KernelBackend>>,
        moe: Option<&str>,
        attention: Option<&str>,
    ) -> Result<Self, SelectError> {
        let find = |flag, name: Option<&str>| {
            let Some(name) = name else { return Ok(None) };
            let missing =
                || SelectError::NotLoaded { flag, name: name.to_owned(), loaded: names(list.iter()) };
            list.iter().position(|backend| backend.name() == name).map(Some).ok_or_else(missing)
        };
        let (moe, attention) = (find(MOE_FLAG, moe)?, find(ATTENTION_FLAG, attention)?);
        Ok(Self { list, moe, attention })
    }

    /// The backends, in load order.
    pub fn list(&self) -> &[Arc<dyn KernelBackend>] {
        &self.list
    }

    /// Indices of the backends that may do an operation; never empty.
    ///
    /// A forced backend must do the heavy operation itself (experts, attention); for the small ones around it, it is
    /// preferred.
    pub fn able(&self, desc: &OpDesc) -> Result<Vec<usize>, SelectError> {
        let operation = desc.kind().label();
        let answers: Vec<_> = self.list.iter().map(|backend| backend.supports(desc)).collect();
        let mut able: Vec<_> = (0..self.list.len()).filter(|index| answers[*index] == Support::Yes).collect();
        let (flag, forced, heavy) = match desc.kind() {
            OpKind::Experts | OpKind::FusedMoe => (MOE_FLAG, self.moe, true),
            OpKind::Route | OpKind::Finalize | OpKind::Combine => (MOE_FLAG, self.moe, false),
            OpKind::ExpertProduct | OpKind::Swiglu | OpKind::Quantise => (MOE_FLAG, self.moe, false),
            OpKind::Attention => (ATTENTION_FLAG, self.attention, true),
            OpKind::RopeKvWrite | OpKind::Rope | OpKind::KvWrite => (ATTENTION_FLAG, self.attention, false),
            _ => ("", None, false),
        };
        if let Some(forced) = forced {
            match &answers[forced] {
                Support::Yes => return Ok(vec![forced]),
                Support::No(reason) if heavy => {
                    let able = able.iter().map(|index| &self.list[*index]);
                    return Err(SelectError::Forced {
                        flag,
                        name: self.list[forced].name().to_owned(),
                        operation,
                        reason: reason.clone(),
                        able: names(able),
                    });
                }
                Support::No(_) => {}
            }
        }
        // A product with rotary embedding inside is anybody's, unless the one who must do attention has none: then it stays in parts, and
        // the rotary embedding his.
        if let (OpKind::QkvRope, Some(forced)) = (desc.kind(), self.attention)
            && answers[forced] != Support::Yes
        {
            able.clear();
        }
        // The portable backend comes last: it is there to be right, not to be fast.
        able.sort_by_key(|index| self.list[*index].name() == "fallback");
        if able.is_empty() {
            let reason = |(backend, answer): (&Arc<dyn KernelBackend>, &Support)| match answer {
                Support::No(reason) => format!("{}: {reason}", backend.name()),
                Support::Yes => format!("{}: another does attention", backend.name()),
            };
            let reasons: Vec<_> = self.list.iter().zip(&answers).map(reason).collect();
            let reasons = if reasons.is_empty() { "none is loaded".to_owned() } else { reasons.join("; ") };
            return Err(SelectError::Unsupported { operation, reasons });
        }
        Ok(able)
    }
}

const MOE_FLAG: &str = "--moe-backend";
const ATTENTION_FLAG: &str = "--attention-backend";

fn names<'a>(list: impl Iterator<Item = &'a Arc<dyn KernelBackend>>) -> String {
    let names: Vec<_> = list.map(|backend| backend.name()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, build};
    use crate::test_model::{Fake, config, options};

    fn attention() -> OpDesc {
        let graph = build(&config(), &options());
        let node = graph.nodes.iter().find(|node| matches!(node.op, Op::Attention { .. })).unwrap();
        node.op.desc()
    }

    fn backends(attention: Option<&str>) -> Result<Backends, SelectError> {
        let list: Vec<Arc<dyn KernelBackend>> = vec![
            Arc::new(Fake::able("fallback")),
            Arc::new(Fake::unable("quick")),
            Arc::new(Fake::able("other")),
        ];
        Backends::new(list, None, attention)
    }

    #[test]
    fn without_force_every_able_backend_is_a_candidate_and_the_portable_one_comes_last() {
        assert_eq!(backends(None).unwrap().able(&attention()).unwrap(), [2, 0]);
    }

    #[test]
    fn a_forced_backend_is_the_only_candidate() {
        assert_eq!(backends(Some("fallback")).unwrap().able(&attention()).unwrap(), [0]);
    }

    #[test]
    fn a_fused_product_is_anybodys_unless_the_forced_backend_has_none() {
        let mut graph = build(&config(), &options());
        crate::passes::run(&mut graph, &std::collections::BTreeSet::new(), &|_| true);
        let fused = graph.nodes.iter().map(|node| node.op.desc()).find(|desc| desc.kind() == OpKind::QkvRope);
        let fused = fused.unwrap();
        assert_eq!(backends(None).unwrap().able(&fused).unwrap(), [2, 0]);
        assert_eq!(backends(Some("other")).unwrap().able(&fused).unwrap(), [2, 0]);
        assert!(backends(Some("quick")).unwrap().able(&fused).is_err());
    }

    #[test]
    fn a_forced_backend_that_cannot_stops_with_its_reason_and_the_alternatives() {
        let error = backends(Some("quick")).unwrap().able(&attention()).unwrap_err().to_string();
        for part in ["--attention-backend quick", "attention sinks are not supported", "fallback, other"] {
            assert!(error.contains(part), "expected '{part}' in '{error}'");
        }
    }

    #[test]
    fn an_unknown_name_lists_what_is_loaded() {
        let error = backends(Some("nowhere")).err().unwrap().to_string();
        assert!(error.contains("nowhere") && error.contains("fallback, quick, other"), "{error}");
    }

    #[test]
    fn an_operation_nobody_can_do_names_every_reason() {
        let backends = Backends::new(vec![Arc::new(Fake::unable("quick"))], None, None).unwrap();
        let error = backends.able(&attention()).unwrap_err().to_string();
        assert!(error.contains("quick: attention sinks are not supported"), "{error}");
        let error = Backends::new(vec![], None, None).unwrap().able(&attention()).unwrap_err().to_string();
        assert!(error.contains("none is loaded"), "{error}");
    }
}
