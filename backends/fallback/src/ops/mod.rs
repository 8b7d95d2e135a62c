//! One file per operation. Each has a layout function, which places its buffers in the workspace (or measures them), and a
//! launch. What an operation computes is specified in `gossamer_backend_api::ops`.

pub mod all_reduce;
pub mod attention;
pub mod dense;
pub mod embed;
pub mod expert_product;
pub mod experts;
pub mod finalize;
pub mod norm;
pub mod parts;
pub mod rope;
pub mod route;
pub mod sample;
pub mod scatter;
pub mod sorted;
