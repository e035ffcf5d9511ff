package torch

// Packed is a batch of sequences laid end to end, without padding.
type Packed struct {
	Tokens    []int64 // [N]
	Positions []int64 // [N], from 0 in each sequence that is not a continuation
	CuSeqlens []int32 // [S+1]: sequence i is tokens CuSeqlens[i] to CuSeqlens[i+1]
	// Continues [S] is the sequence that each one continues, -1 for none; nil: all -1. Continuations directly follow their
	// sequence and attend to its tokens. Only for decoders, without Dropout and without a Rope with SwitchLength.
	Continues []int32
	// Routes are the experts of each token, [N, L·k], where −1 is the first of a token that the router decides; nil: it always
	// does. See Event.Routes.
	Routes []int32
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

// leastShared is the shortest common prefix that is worth sharing, in tokens.
const leastShared = 8

// PackShared is Pack with common prefixes of neighbouring sequences stored once, as a sequence that they continue: the
// completions of a prompt share it (Liu 2025, Prefix Grouper, §3). At most the first limits[i] tokens of sequence i are
// shared. place maps each token of the sequences laid end to end to its position in the result.
func PackShared(sequences [][]int32, limits []int) (p Packed, place []int64) {
	p.CuSeqlens = []int32{0}
	add := func(ids []int32, from int, continues int32) {
		for i, id := range ids {
			p.Tokens, p.Positions = append(p.Tokens, int64(id)), append(p.Positions, int64(from+i))
		}
		p.CuSeqlens, p.Continues = append(p.CuSeqlens, int32(len(p.Tokens))), append(p.Continues, continues)
	}
	for first := 0; first < len(sequences); {
		n, shared := alike(sequences[first:], limits[first:])
		start, family := int64(len(p.Tokens)), int32(-1)
		if shared > 0 {
			family = int32(p.Len())
			add(sequences[first][:shared], 0, -1)
		}
		for _, ids := range sequences[first : first+n] {
			for i := range shared {
				place = append(place, start+int64(i))
			}
			for i := range ids[shared:] {
				place = append(place, int64(len(p.Tokens)+i))
			}
			add(ids[shared:], shared, family)
		}
		first += n
	}
	return p, place
}

// alike returns how many of the first sequences to pack together, and their common prefix in tokens. A sequence joins if
// that saves more tokens.
func alike(sequences [][]int32, limits []int) (n, shared int) {
	n, shared = 1, limits[0]
	for n < len(sequences) {
		ids, k := sequences[n], 0
		for k < min(shared, limits[n]) && ids[k] == sequences[0][k] {
			k++
		}
		if k < leastShared || n*k <= (n-1)*shared {
			break
		}
		n, shared = n+1, k
	}
	if n == 1 {
		return 1, 0
	}
	return n, shared
}

// Len returns the number of sequences.
func (p Packed) Len() int { return len(p.CuSeqlens) - 1 }

// Dropout is the dropout of the adapters' input. A token's mask is a hash of its sequence's key, position, layer and
// feature, so it depends neither on the batch nor on the order of calls.
type Dropout struct {
	P    float64  // in [0, 1)
	Keys []uint64 // [S], one per sequence
}

// rowKeys returns a key per token.
func (d Dropout) rowKeys(p Packed) []int64 {
	keys := make([]int64, len(p.Tokens))
	for i, key := range d.Keys {
		for t := p.CuSeqlens[i]; t < p.CuSeqlens[i+1]; t++ {
			// An odd multiplier separates keys of neighbouring positions in all 64 bits.
			keys[t] = int64(key + uint64(p.Positions[t])*0x9e3779b97f4a7c15)
		}
	}
	return keys
}
