package gguf

// fromQ2_K: 16 bytes of scale and minimum, four bits each, 64 bytes of four values, d, dmin. w = d·s·q − dmin·m
func fromQ2_K(dst []float32, b []byte) {
	scales, qs, d, least := b[:16], b[16:80], half16(b[80:]), half16(b[82:])
	for group := range 16 { // of 16 values
		s, m := d*float32(scales[group]&15), least*float32(scales[group]>>4)
		from, shift := group/8*32+group%2*16, group/2%4*2
		for i := range 16 {
			dst[16*group+i] = float32(s*float32(qs[from+i]>>shift&3)) - m
		}
	}
}

// fromQ3_K: 256 high bits, 64 bytes of four low parts, 16 scales of six bits in 12 bytes, d. w = d·(s − 32)·(q − 4 if
// the high bit is clear)
func fromQ3_K(dst []float32, b []byte) {
	high, qs, packed, d := b[:32], b[32:96], b[96:108], half16(b[108:])
	for group := range 16 {
		s := packed[group%8] >> (group / 8 * 4) & 15
		s |= packed[8+group%4] >> (group / 4 * 2) & 3 << 4
		scale := d * float32(int(s)-32)
		from, shift := group%2*16, group/2%4*2
		for i := range 16 {
			q := int(qs[group/8*32+from+i] >> shift & 3)
			if high[from+i]>>(group/2)&1 == 0 {
				q -= 4
			}
			dst[16*group+i] = scale * float32(q)
		}
	}
}

// scaleAndMinimum returns those of one of eight groups, six bits each in 12 bytes.
func scaleAndMinimum(packed []byte, group int) (scale, minimum byte) {
	if group < 4 {
		return packed[group] & 63, packed[group+4] & 63
	}
	low := packed[group+4]
	return low&15 | packed[group-4]>>2&48, low>>4 | packed[group]>>2&48
}

// fromQ4_K: d, dmin, 12 bytes of scales and minima, 128 bytes of two values. w = d·s·q − dmin·m
func fromQ4_K(dst []float32, b []byte) {
	d, least, packed, qs := half16(b), half16(b[2:]), b[4:16], b[16:144]
	for group := range 8 { // of 32 values
		sc, mn := scaleAndMinimum(packed, group)
		s, m, shift := d*float32(sc), least*float32(mn), group%2*4
		for i, q := range qs[group/2*32:][:32] {
			dst[32*group+i] = float32(s*float32(q>>shift&15)) - m
		}
	}
}

// fromQ5_K: as Q4_K, with 32 bytes of high bits before the 128.
func fromQ5_K(dst []float32, b []byte) {
	d, least, packed, high, qs := half16(b), half16(b[2:]), b[4:16], b[16:48], b[48:176]
	for group := range 8 {
		sc, mn := scaleAndMinimum(packed, group)
		s, m, shift := d*float32(sc), least*float32(mn), group%2*4
		for i, q := range qs[group/2*32:][:32] {
			value := q>>shift&15 | high[i]>>group&1<<4
			dst[32*group+i] = float32(s*float32(value)) - m
		}
	}
}

// fromQ6_K: 128 bytes of two low parts, 64 of four high ones, 16 signed scales, d. w = d·s·(q − 32)
func fromQ6_K(dst []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half16(b[208:])
	for group := range 8 { // of 32 values, with two scales
		half, part := group/4, group%4
		ql, qh := low[half*64+part%2*32:][:32], high[half*32:][:32]
		for i := range 32 {
			q := int(ql[i]>>(part/2*4)&15|qh[i]>>(part*2)&3<<4) - 32
			s := d * float32(int8(scales[2*group+i/16]))
			dst[32*group+i] = s * float32(q)
		}
	}
}
