package torch_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/torch"
)

func TestPackSharedStoresPrefixesOnce(t *testing.T) {
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	with := func(more ...int32) []int32 { return append(append([]int32{}, prompt...), more...) }
	for name, test := range map[string]struct {
		sequences [][]int32
		limits    []int
		cu        []int32
		continues []int32
		place     []int64
	}{
		"two answers to a prompt": {
			[][]int32{with(20, 21), with(30)}, []int{9, 9}, []int32{0, 9, 11, 12}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 11},
		},
		"an answer of no token": {
			[][]int32{with(), with(30)}, []int{9, 9}, []int32{0, 9, 9, 10}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		},
		"the limit of one": {
			[][]int32{with(20), with(20)}, []int{10, 8}, []int32{0, 8, 10, 12}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11},
		},
		"too little in common": {
			[][]int32{{1, 2, 3, 4, 5, 6, 7, 20}, {1, 2, 3, 4, 5, 6, 7, 21}}, []int{8, 8}, []int32{0, 8, 16}, []int32{-1, -1},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		},
		"one alone": {[][]int32{{1, 2}}, []int{2}, []int32{0, 2}, []int32{-1}, []int64{0, 1}},
		"none":      {nil, nil, []int32{0}, nil, nil},
	} {
		p, place := torch.PackShared(test.sequences, test.limits)
		if diff := cmp.Diff(test.cu, p.CuSeqlens) + cmp.Diff(test.continues, p.Continues) + cmp.Diff(test.place, place); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		at := 0
		for i, ids := range test.sequences {
			for position, id := range ids {
				if row := place[at]; p.Tokens[row] != int64(id) || p.Positions[row] != int64(position) {
					t.Errorf("%s: token %d of sequence %d is %d at position %d, want %d at %d", name, position, i, p.Tokens[row], p.Positions[row], id, position)
				}
				at++
			}
		}
	}
}

// TestPackSharedSeparatesPrompts: completions of two prompts with a common prefix stay two groups, because together
// they would share less.
func TestPackSharedSeparatesPrompts(t *testing.T) {
	a, b := make([]int32, 40), make([]int32, 40)
	for i := range 20 {
		a[20+i], b[20+i] = 1, 2
	}
	p, _ := torch.PackShared([][]int32{append(a, 3), append(a, 4), append(b, 3), append(b, 4)}, []int{40, 40, 40, 40})
	expect.Equal(t, []int32{-1, 0, 0, -1, 3, 3}, p.Continues, "continues")
}
