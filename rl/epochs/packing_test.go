package epochs

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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
			got := bestFit(items, func(i int) int { return c.lengths[i] }, c.size)
			expect.Equal(t, c.want, got, "bins")
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
