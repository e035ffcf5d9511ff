package epochs

import "slices"

// bestFit packs items into bins of the given size: the longest item first, each into the fullest bin that
// has room for it. Items of one length keep their order. An item longer than size has a bin of its own.
func bestFit(items []int, length func(item int) int, size int) [][]int {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b int) int { return length(b) - length(a) })
	var bins [][]int
	byRoom := make([][]int, size+1) // bins with so much room left
	for _, item := range items {
		n := length(item)
		room := n
		for room <= size && len(byRoom[room]) == 0 {
			room++
		}
		bin := len(bins)
		if room <= size {
			last := len(byRoom[room]) - 1
			bin = byRoom[room][last]
			byRoom[room] = byRoom[room][:last]
		} else {
			bins = append(bins, nil)
			room = size
		}
		bins[bin] = append(bins[bin], item)
		if left := room - n; left > 0 {
			byRoom[left] = append(byRoom[left], bin)
		}
	}
	return bins
}
