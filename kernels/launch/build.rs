//! Links the CUDA kernels where they can be had.

fn main() {
    gossamer_kernel_link::link();
}
