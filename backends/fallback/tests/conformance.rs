//! Every operation on every instruction set of this machine against the float64 references; on the one that
//! `GOSSAMER_CPU_ISA` names, where that is set.

use gossamer_backend_api::HostServices;
use gossamer_backend_api::conformance::{Bench, HostMemory, check_all};
use gossamer_fallback::{Fallback, ISA_VARIABLE, Isa};

#[test]
fn every_operation_on_every_instruction_set_is_within_its_bound() {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |elapsed| elapsed.as_millis() as u64 % 1_000_000);
    let mut checked = 0;
    let wanted = std::env::var(ISA_VARIABLE).ok();
    for isa in Isa::available().filter(|isa| wanted.as_ref().is_none_or(|wanted| isa.label() == wanted)) {
        let backend = Fallback::with_isa(HostServices::inline(), isa).expect("the set is available");
        let mut bench = Bench { backend: &backend, memory: HostMemory::default(), only: vec![] };
        let mut worst = std::collections::BTreeMap::new();
        let mut failures = Vec::new();
        for outcome in check_all(&mut bench, seed, 1) {
            checked += 1;
            let narrow = outcome.case.contains("activation: bfloat16") || outcome.case.contains(" bfloat16 ");
            let name = outcome.case.split(' ').next().unwrap_or_default();
            let name = format!("{name}{}", if narrow { " bfloat16" } else { "" });
            let share: &mut f64 = worst.entry(name).or_default();
            *share = share.max(outcome.error / outcome.bound);
            if !outcome.passes() {
                failures.push(format!("{}: error {} of {}", outcome.case, outcome.error, outcome.bound));
            }
        }
        println!("{isa}: worst share of the bound per operation: {worst:.3?}");
        assert!(failures.is_empty(), "{isa}, {} failures:\n{}", failures.len(), failures.join("\n"));
    }
    assert!(checked > 100, "only {checked} cases ran");
}
