package dataset

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Balance keeps the first limit/C rows (rounded down) of each of the C labels, in order. A label with fewer rows keeps them
// all; a limit below C keeps none. If rows have splits, each split gets its share of limit and is balanced separately; a
// share below C becomes one row per label, within the limit.
func Balance(rows []Row, limit int) []Row {
	sizes := map[string]int{}
	for _, r := range rows {
		sizes[r.Split]++
	}
	type group struct{ split, label string }
	left := map[group]int{}
	labels := map[string]int{} // of a split
	for _, r := range rows {
		g := group{r.Split, r.Label}
		if _, met := left[g]; !met {
			left[g] = 0
			labels[r.Split]++
		}
	}
	spare := limit
	for g := range left {
		left[g] = limit * sizes[g.split] / len(rows) / labels[g.split]
		spare -= left[g]
	}
	for _, split := range []string{Val, Test, Train, ""} { // a small share becomes one row per label, within the limit
		if n := labels[split]; n > 0 && n <= spare && limit*sizes[split]/len(rows)/n == 0 {
			spare -= n
			for g := range left {
				if g.split == split {
					left[g] = 1
				}
			}
		}
	}
	var kept []Row
	for _, r := range rows {
		if g := (group{r.Split, r.Label}); left[g] > 0 {
			left[g]--
			kept = append(kept, r)
		}
	}
	return kept
}

// Overlap finds what weakens an evaluation on rows: texts that are also in train, and labels that train lacks. Both are in
// the order of rows.
func Overlap(train, rows []Row) (texts []Row, labels []string) {
	seen, known := map[string]bool{}, map[string]bool{}
	for _, r := range train {
		seen[r.Text], known[r.Label] = true, true
	}
	for _, r := range rows {
		if seen[r.Text] {
			texts = append(texts, r)
		}
		if !known[r.Label] {
			known[r.Label] = true
			labels = append(labels, r.Label)
		}
	}
	return texts, labels
}

// SetApart moves this fraction of each label's texts, evenly spaced, from rows to apart. Both parts keep the order of
// rows. Rows of equal text stay together, whatever their labels.
func SetApart(rows []Row, fraction float64) (rest, apart []Row) {
	const rounding = 1e-9 // 3 · (1/3) counts as 1
	count := func(texts int) float64 { return math.Floor(float64(texts)*fraction + rounding) }
	chosen := map[string]bool{} // by text
	texts := map[string]int{}   // per label
	for _, r := range rows {
		if _, met := chosen[r.Text]; !met {
			texts[r.Label]++
			chosen[r.Text] = count(texts[r.Label]) > count(texts[r.Label]-1)
		}
		if chosen[r.Text] {
			apart = append(apart, r)
		} else {
			rest = append(rest, r)
		}
	}
	return rest, apart
}

// splitStream separates the random stream of Split from others with the same seed.
const splitStream = 0x5b11_7da7_a5e7

// Split splits rows into training, validation and test rows. Each split keeps the order of rows and sets Row.Split.
//
// If rows have splits (Read sets all or none), those apply. Otherwise the texts of each label are split 70/15/15 at random,
// by math/rand/v2's PCG(seed, constant); see Counts for rounding. Rows with equal text go to the same split, whatever their
// labels (a text counts under its first label), because a text seen in training measures nothing. The result depends only
// on the order of rows and on seed.
func Split(rows []Row, seed uint64) (train, val, test []Row) {
	if len(rows) == 0 || rows[0].Split == "" {
		rows = assign(rows, seed)
	}
	for _, r := range rows {
		switch r.Split {
		case Train:
			train = append(train, r)
		case Val:
			val = append(val, r)
		case Test:
			test = append(test, r)
		}
	}
	return train, val, test
}

func assign(rows []Row, seed uint64) []Row {
	part := make(map[string]string, len(rows)) // by text
	classes := map[string][]string{}           // distinct texts by label
	for _, r := range rows {
		if _, ok := part[r.Text]; !ok {
			part[r.Text] = Train
			classes[r.Label] = append(classes[r.Label], r.Text)
		}
	}
	rng := rand.New(rand.NewPCG(seed, splitStream))
	for c, label := range slices.Sorted(maps.Keys(classes)) {
		texts := classes[label]
		rng.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		_, val, test := Counts(len(texts), c)
		for _, text := range texts[:test] {
			part[text] = Test
		}
		for _, text := range texts[test : test+val] {
			part[text] = Val
		}
	}
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Split = part[rows[i].Text]
	}
	return rows
}

// Rank sets the Split of the distinct texts of a class; see Counts. It orders them by the SHA-256 of the text: test rows
// first, then validation. The split depends on no seed and no order, and a new text moves at most two others.
func Rank(rows []Row, class int) {
	rank := make([]int, len(rows))
	sums := make([][sha256.Size]byte, len(rows))
	for i, r := range rows {
		rank[i] = i
		sums[i] = sha256.Sum256([]byte(r.Text))
	}
	slices.SortFunc(rank, func(i, j int) int { return bytes.Compare(sums[i][:], sums[j][:]) })
	_, val, test := Counts(len(rows), class)
	for place, i := range rank {
		switch {
		case place < test:
			rows[i].Split = Test
		case place < test+val:
			rows[i].Split = Val
		default:
			rows[i].Split = Train
		}
	}
}

// Counts returns the split sizes for n distinct texts of a class. 0.3·n, rounded half up, are held out, half for test and
// half for validation. An odd one goes to test for even class indices and to validation for odd ones, so that many small
// classes stay balanced. With three or more texts every split gets at least one; with two, one is test; a single one is
// training.
func Counts(n, class int) (train, val, test int) {
	switch {
	case n < 2:
		return n, 0, 0
	case n == 2:
		return 1, 0, 1
	}
	held := max(2, (3*n+5)/10)
	val = (held + class%2) / 2
	return n - held, val, held - val
}
