//! The container and the kernels agree on which encodings are interleaved.

use slm_format::Encoding;
use slm_format::container::TensorLayout;

#[test]
fn the_container_allows_what_the_kernels_interleave() {
    for encoding in Encoding::all() {
        let fits = TensorLayout::Interleaved16.fits(encoding);
        assert_eq!(fits, slm_quant::layout::is_interleavable(encoding), "{encoding}");
    }
}
