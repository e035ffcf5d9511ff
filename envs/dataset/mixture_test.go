package dataset

import (
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestSpread(t *testing.T) {
	records := func(n int, end error) iter.Seq2[Record, error] {
		return func(yield func(Record, error) bool) {
			for i := range n {
				if !yield(Record{Line: i}, nil) {
					return
				}
			}
			if end != nil {
				yield(Record{}, end)
			}
		}
	}
	for _, c := range []struct {
		weight float64
		rows   int
		want   string
	}{
		{1, 4, "0123"}, {2, 3, "001122"}, {0.5, 6, "135"}, {1.5, 4, "011233"}, {0.1, 20, "919"}, {0.3, 10, "369"}, {0.01, 9, ""},
	} {
		got := ""
		for r, err := range (Weighted{"a", c.weight}).Spread(records(c.rows, nil)) {
			must.Do(t, err)
			got += fmt.Sprint(r.Line)
		}
		expect.Same(t, c.want, got, "weight %v", c.weight)
	}
	n := 0
	for range (Weighted{"a", 0.58}).Spread(records(50, nil)) { // 50 · 0.58 is less than 29 in floating point
		n++
	}
	expect.Same(t, 29, n, "rows of 50")
	broken := errors.New("broken")
	var last error
	n = 0
	for _, last = range (Weighted{"a", 0.5}).Spread(records(5, broken)) {
		n++
	}
	expect.True(t, n == 3 && errors.Is(last, broken), "%d records, then %v", n, last)
	for range (Weighted{"a", 3}).Spread(records(5, nil)) {
		break // as a loop that has enough
	}
}

func FuzzMixture(f *testing.F) {
	for _, seed := range []string{"a=1", "a=b=0.5", "=1", "a", "a=0", "a=NaN", "a=1e9", "hub/name@rev=2", "a=-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sets, err := Mixture{Mix: []string{text}}.Sets()
		expect.True(t, err != nil || len(sets) == 1 && sets[0].Name != "" && sets[0].Weight > 0, "%q is read as %+v", text, sets)
	})
}
