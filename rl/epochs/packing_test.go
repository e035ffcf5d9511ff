package epochs

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestSourceEnds: a source needs samples and a size, the last step of an epoch has the rest, and a cancelled context ends it.
func TestSourceEnds(t *testing.T) {
	samples := []*rl.Sample{{Tokens: []int32{1, 2, 3}, Rows: []int{0}, Prompt: 0}, {Tokens: []int32{4, 5, 6, 7}, Rows: []int{1}, Prompt: 1}, {Tokens: []int32{8}, Rows: []int{0}, Prompt: 2}}
	expect.Failure(New(nil, 1, 0, 1))(t, "no training rows")
	expect.Failure(New(samples, 0, 0, 1))(t, "no rows per batch")
	source := must.Get(New(samples, 2, 0, 1))(t)
	expect.Same(t, 2, source.PerEpoch(), "steps of an epoch")
	for at, want := range []map[string]any{{"epoch": 0.5}, {"epoch": 1., "num_tokens": 8.}, {"epoch": 1.5}} {
		step := must.Get(source.Next(t.Context(), rl.At{Step: at}))(t)
		expect.Same(t, 2-at%2, len(step.Samples), "samples of step %d", at)
		for name, value := range want {
			expect.Equal(t, value, step.Figures.Get(name), name)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, source := range []rl.StepSource{source, NewPreferences(slices.Collect(slices.Chunk(samples, 1)), 3, 4, 1)} {
		expect.Failure(source.Next(cancelled, rl.At{}))(t, "canceled")
		state := must.Get(json.Marshal(source.State()))(t)
		must.Do(t, source.Restore(state))
		expect.Error(t, source.Restore([]byte(`"x"`)), "string")
	}
	// The prompt of each with the response of the one before: {1 | 8's none}, {4 5 | 2 3}, {8 | 6 7}, of at most three tokens.
	got := Mismatches(samples, 3)
	expect.Equal(t, []*rl.Sample{
		{Tokens: []int32{4, 5, 2}, Actions: []int32{2}, Rows: []int{1}, Prompt: 1}, {Tokens: []int32{8, 6, 7}, Actions: []int32{6, 7}, Rows: []int{0, 1}, Prompt: 2},
	}, got)
	step := must.Get(NewPreferences(slices.Collect(slices.Chunk(samples, 1)), 3, 3, 1).Next(t.Context(), rl.At{}))(t)
	expect.Equal(t, Mismatches(step.Samples, 3), step.KLSamples)
	expect.True(t, Mismatched(samples[1], samples[0], 2) == nil && Mismatched(samples[1], samples[0], 1) == nil, "a prompt without room for a response")
}

// TestSum: ranks whose samples differ in anything that training reads have different sums.
func TestSum(t *testing.T) {
	sum := func(change func(x *rl.Sample)) uint64 {
		samples := []*rl.Sample{{Tokens: []int32{1, 2}, Actions: []int32{2}}, {Tokens: []int32{3}, Actions: []int32{4}, Truth: 1}}
		change(samples[1])
		return must.Get(New(samples, 1, 0, 1))(t).Sum()
	}
	same := sum(func(*rl.Sample) {})
	for name, change := range map[string]func(x *rl.Sample){
		"a token":  func(x *rl.Sample) { x.Tokens[0] = 5 },
		"a length": func(x *rl.Sample) { x.Tokens = []int32{3, 3} },
		"a label":  func(x *rl.Sample) { x.Actions[0] = 5 },
		"a truth":  func(x *rl.Sample) { x.Truth = 0 },
	} {
		expect.True(t, sum(change) != same, "%s changes nothing", name)
	}
	expect.Same(t, same, sum(func(*rl.Sample) {}), "equal samples have different sums")
}

// TestRank: each epoch takes all samples in the order of their ranks, equal ones in any order.
func TestRank(t *testing.T) {
	var samples []*rl.Sample
	ranks := []float64{2, 1, 1, 0.5, 2, 1, 1, -3}
	for i := range ranks {
		samples = append(samples, &rl.Sample{Tokens: []int32{1}, Actions: []int32{1}, Prompt: i})
	}
	source := must.Get(New(samples, 3, 0, 1))(t)
	unranked := source.Sum()
	source.Rank(slices.Repeat([]float64{1}, len(samples)))
	equal := source.Sum()
	source.Rank(ranks)
	expect.True(t, source.Sum() != unranked && source.Sum() != equal, "ranks of another order have the same sum")
	var orders [][]int
	for epoch := range 2 {
		var order []int
		for step := range source.PerEpoch() {
			for _, x := range must.Get(source.Next(t.Context(), rl.At{Step: epoch*source.PerEpoch() + step}))(t).Samples {
				order = append(order, x.Prompt)
			}
		}
		expect.True(t, slices.IsSortedFunc(order, func(i, j int) int { return int(2 * (ranks[i] - ranks[j])) }), "epoch %d takes %v", epoch, order)
		orders = append(orders, order)
	}
	expect.True(t, !slices.Equal(orders[0], orders[1]), "both epochs take %v", orders[0])
	slices.Sort(orders[0])
	expect.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, orders[0], "samples of an epoch")
}

func TestBestFit(t *testing.T) {
	for _, c := range []struct {
		name    string
		lengths []int
		size    int
		want    [][]int
	}{
		{"nothing", nil, 8, nil},
		{"the fullest bin with room wins", []int{5, 6, 2, 3}, 8, [][]int{{1, 2}, {0, 3}}},
		{"equal lengths keep their order", []int{4, 4, 4}, 8, [][]int{{0, 1}, {2}}},
		{"too long for any bin", []int{9, 8, 1}, 8, [][]int{{0}, {1}, {2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			items := make([]int, len(c.lengths))
			for i := range items {
				items[i] = i
			}
			expect.Equal(t, c.want, bestFit(items, func(i int) int { return c.lengths[i] }, c.size), "bins")
		})
	}
}

func TestBestFitHoldsEveryItemOnce(t *testing.T) {
	length := func(i int) int { return 1 + i*7919%61 }
	items := make([]int, 500)
	for i := range items {
		items[i] = i
	}
	seen := map[int]int{}
	bins := bestFit(items, length, 64)
	total := 0
	for _, bin := range bins {
		sum := 0
		for _, i := range bin {
			seen[i]++
			sum += length(i)
		}
		total += sum
		expect.True(t, sum <= 64, "bin %v holds %d tokens", bin, sum)
	}
	for _, i := range items {
		expect.Same(t, 1, seen[i], "item %d is in %d bins", i, seen[i])
	}
	share := float64(total) / float64(64*len(bins))
	expect.True(t, share >= 0.97, "bins are %.0f %% full", 100*share)
}
