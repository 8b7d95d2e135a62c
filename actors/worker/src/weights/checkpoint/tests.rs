use super::*;
use gossamer_kernels::graph::Fill;
use safetensors::tensor::{Dtype, TensorView};

fn weight(name: &str, shape: &[u64], element: WeightType) -> Weight {
    Weight { name: name.into(), shape: shape.to_vec(), element, fill: Fill::Codes }
}

fn model() -> Vec<Weight> {
    vec![weight("a", &[2, 3], WeightType::Bf16), weight("b", &[5], WeightType::U8)]
}

fn save(path: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

const A: (&str, Dtype, &[usize], &[u8]) =
    ("a", Dtype::BF16, &[2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
const B: (&str, Dtype, &[usize], &[u8]) = ("b", Dtype::U8, &[5], &[20, 21, 22, 23, 24]);

fn read(address: u64, bytes: usize) -> Vec<u8> {
    // SAFETY: the weights that gave the address are alive in the test, and as long as their description says.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
}

fn check(directory: &Path) {
    let weights = map(directory, &model()).unwrap();
    assert_eq!(read(weights.addresses[0], 12), A.3);
    assert_eq!(read(weights.addresses[1], 5), B.3);
}

#[test]
fn one_file_and_shards_with_and_without_an_index_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    save(&at("model.safetensors"), &[A, B]);
    check(directory.path());
    std::fs::remove_file(at("model.safetensors")).unwrap();
    save(&at("model-1.safetensors"), &[B]);
    save(&at("model-2.safetensors"), &[A]);
    check(directory.path());
    let index = r#"{"metadata": {}, "weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}"#;
    std::fs::write(at(INDEX), index).unwrap();
    // Not in the index, so not part of the checkpoint.
    std::fs::write(at("other.safetensors"), b"junk").unwrap();
    check(directory.path());
}

#[test]
fn a_tensor_at_an_odd_address_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let header = r#"{"b":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[5,17]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    if bytes.len() % 2 == 1 {
        bytes.push(b' ');
        bytes[0] += 1;
    }
    bytes.extend(B.3);
    bytes.extend(A.3);
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    check(directory.path());
    assert!(map(directory.path(), &model()).unwrap().addresses[0].is_multiple_of(2));
}

#[test]
fn refusals_name_the_file_and_the_tensor() {
    let error_of = |write: &dyn Fn(&Path)| {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        map(directory.path(), &model()).unwrap_err().to_string()
    };
    let check = |expected: &[&str], write: &dyn Fn(&Path)| {
        let error = error_of(write);
        for part in expected {
            assert!(error.contains(part), "expected '{part}' in '{error}'");
        }
    };
    let file = |directory: &Path| directory.join("model.safetensors");
    check(&["no *.safetensors", "--load-format dummy"], &|_| {});
    check(&["model.safetensors", "'b' is missing"], &|at| save(&file(at), &[A]));
    check(&["model.safetensors", "'a'", "BF16 [2, 3]", "BF16 [3, 2]"], &|at| {
        save(&file(at), &[("a", Dtype::BF16, &[3, 2], A.3), B]);
    });
    check(&["'a'", "BF16 [2, 3]", "F16 [2, 3]"], &|at| {
        save(&file(at), &[("a", Dtype::F16, &[2, 3], A.3), B])
    });
    check(&["x2.safetensors", "'b'", "second time", "x1.safetensors"], &|at| {
        save(&at.join("x1.safetensors"), &[A, B]);
        save(&at.join("x2.safetensors"), &[B]);
    });
    check(&["model.safetensors", "'b'", "truncated"], &|at| {
        save(&file(at), &[A, B]);
        let bytes = std::fs::read(file(at)).unwrap();
        std::fs::write(file(at), &bytes[..bytes.len() - 1]).unwrap();
    });
    check(&["model.safetensors", "does not fit"], &|at| std::fs::write(file(at), [255; 20]).unwrap());
    check(&["model.safetensors", "damaged"], &|at| {
        std::fs::write(file(at), b"\x02\0\0\0\0\0\0\0[]").unwrap();
    });
    check(&["index.json", "same directory", "../a"], &|at| {
        std::fs::write(at.join(INDEX), r#"{"weight_map": {"a": "../a"}}"#).unwrap();
    });
    check(&["cannot read", "gone.safetensors"], &|at| {
        std::fs::write(at.join(INDEX), r#"{"weight_map": {"a": "gone.safetensors"}}"#).unwrap();
    });
    check(&["m2.safetensors", "'b' is missing"], &|at| {
        save(&at.join("m1.safetensors"), &[A]);
        save(&at.join("m2.safetensors"), &[("c", Dtype::U8, &[5], B.3)]);
        let index = r#"{"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}}"#;
        std::fs::write(at.join(INDEX), index).unwrap();
    });
}
