package torch

// Packed is a batch of sequences laid end to end, without padding.
type Packed struct {
	Tokens    []int64 // [N]
	Positions []int64 // [N], from 0 in each sequence
	CuSeqlens []int32 // [S+1]: sequence i is tokens CuSeqlens[i] to CuSeqlens[i+1]
}

// Pack lays sequences end to end.
func Pack(sequences [][]int32) Packed {
	total := 0
	for _, ids := range sequences {
		total += len(ids)
	}
	p := Packed{Tokens: make([]int64, 0, total), Positions: make([]int64, 0, total), CuSeqlens: make([]int32, 1, len(sequences)+1)}
	for _, ids := range sequences {
		for i, id := range ids {
			p.Tokens = append(p.Tokens, int64(id))
			p.Positions = append(p.Positions, int64(i))
		}
		p.CuSeqlens = append(p.CuSeqlens, int32(len(p.Tokens)))
	}
	return p
}

// Len is the number of sequences.
func (p Packed) Len() int { return len(p.CuSeqlens) - 1 }

// Dropout is the dropout of the adapters' input. The mask of a token is a hash of its sequence's key, its
// position, the layer and the feature, so it depends neither on the batch nor on the order of calls.
type Dropout struct {
	P    float64  // in [0, 1)
	Keys []uint64 // [S], a key for each sequence
}

// rowKeys is a key for each token.
func (d Dropout) rowKeys(p Packed) []int64 {
	keys := make([]int64, len(p.Tokens))
	for i, key := range d.Keys {
		for t := p.CuSeqlens[i]; t < p.CuSeqlens[i+1]; t++ {
			// An odd multiplier keeps keys of neighbouring positions apart in all 64 bits.
			keys[t] = int64(key + uint64(p.Positions[t])*0x9e3779b97f4a7c15)
		}
	}
	return keys
}
