package rl

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var nan = math.NaN()

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func TestAdvantages(t *testing.T) {
	for _, test := range []struct {
		name   string
		kind   Advantages
		groups [][]float64
		given  []float64
		want   [][]float64
	}{
		{"none", Advantages{BaselineNone, ScaleNone}, [][]float64{{1, 0}, {1, 1}}, nil, [][]float64{{1, 0}, {1, 1}}},
		{"greedy", Advantages{BaselineGreedy, ScaleNone}, [][]float64{{1, 0}, {1, 1}}, []float64{0.5, 1}, [][]float64{{0.5, -0.5}, {0, 0}}},
		{"greedy failed", Advantages{BaselineGreedy, ScaleNone}, [][]float64{{1, 0}, {1, nan}}, []float64{nan, 0}, [][]float64{{0, 0}, {1, 0}}},
		{"moving", Advantages{BaselineMoving, ScaleNone}, [][]float64{{1, -1}}, []float64{0.5}, [][]float64{{0.5, -1.5}}},
		{"group mean", Advantages{BaselineGroup, ScaleNone}, [][]float64{{1, 0, 0, 0}, {1, 1}}, nil, [][]float64{{0.75, -0.25, -0.25, -0.25}, {0, 0}}},
		// mean 2, unbiased variance (1+0+1)/2 = 1
		{"group std", Advantages{BaselineGroup, ScaleGroup}, [][]float64{{1, 2, 3}}, nil, [][]float64{{-1 / 1.0001, 0, 1 / 1.0001}}},
		// over all: mean 1.5, squares 2.25+.25+.25+2.25 = 5, variance 5/3
		{"batch std", Advantages{BaselineGroup, ScaleBatch}, [][]float64{{0, 1}, {2, 3}}, nil,
			[][]float64{{-0.5 / (math.Sqrt(5.0/3) + 1e-4), 0.5 / (math.Sqrt(5.0/3) + 1e-4)}, {-0.5 / (math.Sqrt(5.0/3) + 1e-4), 0.5 / (math.Sqrt(5.0/3) + 1e-4)}}},
		{"batch mean", Advantages{BaselineBatch, ScaleNone}, [][]float64{{0, 1}, {2, 3}}, nil, [][]float64{{-1.5, -0.5}, {0.5, 1.5}}},
		{"batch mean and std", Advantages{BaselineBatch, ScaleBatch}, [][]float64{{1}, {2}, {3}}, nil, [][]float64{{-1 / 1.0001}, {0}, {1 / 1.0001}}},
		{"mean of the group", Advantages{BaselineGroup, ScaleMean}, [][]float64{{1, 0, 0, 0}, {1, 1}}, nil, [][]float64{{3, -1, -1, -1}, {0, 0}}},
		{"by length, equal rewards", Advantages{BaselineLength, ScaleNone}, [][]float64{{1, 2}, {1, 1}}, []float64{1.75, 0.9}, [][]float64{{-0.75, 0.25}, {0, 0}}},
		// 3 − (1+2)/2, 1 − (2+3)/2, 2 − (1+3)/2
		{"leave one out", Advantages{BaselineLeaveOneOut, ScaleNone}, [][]float64{{3, 1, 2}}, nil, [][]float64{{1.5, -1.5, 0}}},
		{"missing in a group", Advantages{BaselineGroup, ScaleGroup}, [][]float64{{1, nan, 3}}, nil, [][]float64{{-1 / (math.Sqrt2 + 1e-4), 0, 1 / (math.Sqrt2 + 1e-4)}}},
		{"missing, leave one out", Advantages{BaselineLeaveOneOut, ScaleNone}, [][]float64{{nan, 3, 1, nan}}, nil, [][]float64{{0, 2, -2, 0}}},
		{"missing in the batch", Advantages{BaselineBatch, ScaleNone}, [][]float64{{nan, 3}, {1}}, nil, [][]float64{{0, 1}, {-1}}},
		{"alone after failures", Advantages{BaselineLeaveOneOut, ScaleNone}, [][]float64{{nan, 3}}, nil, [][]float64{{0, 0}}},
		{"all failed", Advantages{BaselineGroup, ScaleGroup}, [][]float64{{nan, nan}}, nil, [][]float64{{0, 0}}},
		{"nothing", Advantages{BaselineBatch, ScaleBatch}, [][]float64{{}}, nil, [][]float64{{}}},
	} {
		expect.Equal(t, test.want, test.kind.Of(test.groups, test.groups, test.given), cmpopts.EquateApprox(0, 1e-12), test.name)
	}
}

func TestEqualRewardsHaveAdvantageZero(t *testing.T) {
	for _, kind := range []Advantages{{BaselineGroup, ScaleNone}, {BaselineGroup, ScaleGroup}, {BaselineGroup, ScaleBatch}, {BaselineLeaveOneOut, ScaleNone}, {BaselineBatch, ScaleNone}, {BaselineBatch, ScaleBatch}} {
		for _, value := range []float64{0.1, 1.0 / 3, 0.7, -1, 1e300, 1e-300, 0} {
			for _, n := range []int{2, 3, 5, 8, 64} {
				group := slices.Repeat([]float64{value}, n)
				for i, a := range kind.Of([][]float64{group}, [][]float64{group}, nil)[0] {
					expect.Require(t, a == 0, "%+v, %d×%g: advantage %d is %g", kind, n, value, i, a)
				}
			}
		}
	}
}

// TestPenaltiesAreNotScaledUp has eight right answers that differ only by penalties, next to a prompt with right
// and wrong answers.
func TestPenaltiesAreNotScaledUp(t *testing.T) {
	var right, wrongToo, paid, unpaid []float64
	for i := range 8 {
		penalty := 0.001 * float64(i)
		right, paid = append(right, 1), append(paid, 1-penalty)
		wrongToo, unpaid = append(wrongToo, float64(i%2)), append(unpaid, float64(i%2)-penalty)
	}
	scaled := []Advantages{{BaselineGroup, ScaleGroup}, {BaselineGroup, ScaleBatch}, {BaselineBatch, ScaleBatch}}
	for _, kind := range append(scaled, Advantages{BaselineGroup, ScaleNone}, Advantages{BaselineLeaveOneOut, ScaleNone}) {
		got := kind.Of([][]float64{paid}, [][]float64{right}, nil)[0]
		for i, a := range got {
			want := 0.001 * (3.5 - float64(i)) // of a mean penalty of 0.0035
			if kind.Baseline == BaselineLeaveOneOut {
				want *= 8. / 7
			}
			expect.True(t, math.Abs(a-want) <= 1e-12, "%+v: answer %d has the advantage %g, want %g", kind, i, a, want)
		}
	}
	for _, kind := range scaled {
		got := kind.Of([][]float64{unpaid}, [][]float64{wrongToo}, nil)[0]
		for i, a := range got {
			expect.True(t, (a > 0) == (i%2 == 1) && math.Abs(a) >= 0.9, "%+v: answer %d of right and wrong ones has the advantage %g", kind, i, a)
		}
	}
	got := Advantages{BaselineGroup, ScaleGroup}.Of([][]float64{paid, unpaid}, [][]float64{right, wrongToo}, nil)
	expect.True(t, math.Abs(got[0][0]-0.0035) <= 1e-12 && got[1][1] >= 0.9, "side by side: %v", got)
}

func TestAdvantagesCheck(t *testing.T) {
	for _, test := range []struct {
		kind    Advantages
		samples int
		want    string // "" = no error
	}{
		{Advantages{BaselineGroup, ScaleGroup}, 2, ""},
		{Advantages{BaselineGroup, ScaleBatch}, 2, ""},
		{Advantages{BaselineGroup, ScaleMean}, 2, ""},
		{Advantages{BaselineBatch, ScaleBatch}, 1, ""},
		{Advantages{BaselineLeaveOneOut, ScaleNone}, 2, ""},
		{Advantages{BaselineNone, ScaleNone}, 1, ""},
		{Advantages{BaselineLeaveOneOut, ScaleNone}, 1, "leave_one_out compares the samples of a prompt: use at least 2 samples"},
		{Advantages{BaselineLength, ScaleNone}, 1, "length compares the samples"},
		{Advantages{BaselineGroup, ScaleNone}, 1, "group compares the samples"},
		{Advantages{BaselineBatch, ScaleMean}, 4, "cannot be divided by the group's mean"},
		{Advantages{BaselineLeaveOneOut, ScaleGroup}, 4, "cannot be divided by the group's standard deviation"},
		{Advantages{BaselineMoving, ScaleBatch}, 4, "cannot be divided by the batch's standard deviation"},
		{Advantages{BaselineBatch, ScaleGroup}, 4, "cannot be divided by the group's standard deviation"},
		{Advantages{"mean", ScaleNone}, 4, `baseline "mean" is unknown: choose none, group, length, leave_one_out, batch, moving, greedy`},
		{Advantages{BaselineNone, "std"}, 4, `advantage scale "std" is unknown: choose none, group, batch, mean`},
		{Advantages{BaselineNone, ScaleNone}, 0, "0 samples"},
	} {
		err := test.kind.Check(test.samples)
		expect.True(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)),
			"%+v with %d samples: error %v, want %q", test.kind, test.samples, err, test.want)
	}
}

func throughJSON[T any](t *testing.T, state T) T {
	t.Helper()
	encoded := must.Get(json.Marshal(state))(t)
	return must.Into[T](t, json.Unmarshal, encoded)
}

func TestStatsOf(t *testing.T) {
	raw := [][]float64{{1, 0}, {1, 1}, {nan, 2}, {nan, nan}}
	got := StatsOf(raw)
	// scored: 1 0 1 1 2, mean 1, squares 0+1+0+0+1, unbiased variance 2/4; group means 1/2, 1, 2 with variance 7/12
	expect.Equal(t, GroupStats{Mean: 1, Std: math.Sqrt(0.5), StdErr: math.Sqrt(7.0 / 36), ZeroStd: 0.75, Failed: 3}, got, cmpopts.EquateApprox(0, 1e-12))
	expect.Equal(t, GroupStats{}, StatsOf(nil))
	// Of one group alone, the standard error is that of its samples.
	expect.Equal(t, GroupStats{Mean: 1, Std: 1, StdErr: math.Sqrt(1.0 / 3)}, StatsOf([][]float64{{0, 1, 2}}), cmpopts.EquateApprox(0, 1e-12))
}
