package report

import (
	"bytes"
	"fmt"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

var fourteen = []string{
	"biology", "business", "chemistry", "computer science", "economics", "engineering", "health",
	"history", "law", "math", "other", "philosophy", "physics", "psychology",
}

func supervisedRows() []Row {
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []Row
	for step := range 600 {
		rows = append(rows, Row{
			"step": float64(step + 1), "epoch": float64(step+1) / 300,
			"loss":          0.6 + 2*math.Exp(-float64(step)/120) + 0.25*rng.NormFloat64(),
			"learning_rate": 3e-5 * 0.5 * (1 + math.Cos(math.Pi*float64(step)/600)),
		})
		if step%300 == 299 {
			rows = append(rows, Row{"step": float64(step + 1), "epoch": float64(step+1) / 300, "eval_accuracy": 0.62 + float64(step)/6000, "eval_f1_macro": 0.6 + float64(step)/6000})
		}
	}
	return rows
}

func ppoRows() []Row {
	rng := rand.New(rand.NewPCG(3, 4))
	rows := []Row{{"step": 0.0, "episode": 0.0, "eval_accuracy": 0.712, "eval_f1_macro": 0.701}}
	for step := 1; step <= 120; step++ {
		t := float64(step) / 120
		rows = append(rows, Row{
			"step": float64(step), "reward": 0.55 + 0.2*t + 0.05*rng.NormFloat64(), "policy_loss": -0.01 + 0.004*rng.NormFloat64(),
			"value_loss": 0.2*math.Exp(-3*t) + 0.02*rng.Float64(), "approx_kl": 0.004 + 0.003*rng.Float64(), "clip_ratio/region_mean": 0.08 + 0.05*rng.Float64(),
			"entropy": 1.4 - 0.6*t + 0.05*rng.NormFloat64(), "explained_variance": 0.5*t + 0.1*rng.NormFloat64(),
		})
		if step%40 == 0 {
			rows = append(rows, Row{"step": float64(step), "episode": float64(step / 40), "eval_accuracy": 0.712 + 0.02*t, "eval_f1_macro": 0.701 + 0.03*t})
		}
	}
	return rows
}

func reliabilityBins() []Bin {
	var bins []Bin
	for i := range 15 {
		low := float64(i) / 15
		b := Bin{Low: low, High: low + 1.0/15, Count: i * i * 3}
		b.Confidence = low + 0.03
		b.Accuracy = max(0, b.Confidence-0.002*float64(i*i)+0.02)
		bins = append(bins, b)
	}
	return bins
}

func confusionCounts() [][]int {
	rng := rand.New(rand.NewPCG(5, 6))
	counts := make([][]int, 14)
	for i := range counts {
		counts[i] = make([]int, 14)
		counts[i][i] = 20 + rng.IntN(20)
		for range 12 {
			counts[i][rng.IntN(14)]++
		}
	}
	return counts
}

func TestPictures(t *testing.T) {
	for _, test := range []struct {
		name  string
		draw  func(path string) error
		texts []string // the picture must contain these
	}{
		{"supervised", func(path string) error { return Curves(path, Panels(Supervised, supervisedRows())) }, []string{
			"Training loss", "loss, running mean (40)", "cross-entropy, nats", "Held-out accuracy", "accuracy", "macro F1", "step", "Learning rate", "3e-5",
		}},
		{"ppo", func(path string) error { return Curves(path, Panels(Reinforced, ppoRows())) }, []string{
			"Reward", "Policy loss", "Value loss", "KL per update", "Clipped ratios", "Entropy", "Explained variance", "accuracy before", "step",
		}},
		{"reliability", func(path string) error { return Reliability(path, reliabilityBins()) }, []string{"Reliability (ECE 0.2318, n = 3,045)", "confidence", "predictions", "perfectly calibrated"}},
		{"confusion", func(path string) error { return Confusion(path, fourteen, confusionCounts()) }, append([]string{"predicted", "true"}, fourteen...)},
		{"one value", func(path string) error {
			return Curves(path, Panels(Supervised, []Row{{"step": 1.0, "loss": 0.5, "learning_rate": 0.0}}))
		}, []string{"Training loss"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), strings.ReplaceAll(test.name, " ", "_"))
			must.Do(t, test.draw(base+".png"))
			svg := must.Get(os.ReadFile(base + ".svg"))(t)
			for _, text := range test.texts {
				expect.True(t, bytes.Contains(svg, []byte(">"+text)), "the picture lacks the text %q", text)
			}
			expect.True(t, !bytes.Contains(svg, []byte("NaN")), "the picture has places that are not numbers")
			raw := must.Get(os.ReadFile(base + ".png"))(t)
			img := must.Get(png.Decode(bytes.NewReader(raw)))(t)
			size := img.Bounds()
			expect.True(t, size.Dx() >= 700 && size.Dy() >= 500, "picture of %v", size)
			_, _, _, alpha := img.At(0, 0).RGBA()
			expect.True(t, alpha == 0xffff, "the background is transparent")
		})
	}
}

func TestPictureErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.png")
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"nothing", Curves(path, nil), "no panels"},
		{"no values", Curves(path, []Panel{{Title: "Loss", Series: []Series{{Label: "a"}}}}), `panel "Loss": no values`},
		{"lengths", Curves(path, []Panel{{Title: "Loss", Series: []Series{{Label: "a", X: []float64{1}, Y: []float64{1, 2}}}}}), `series "a": 1 x values and 2 y values`},
		{"not a number", Curves(path, []Panel{{Title: "Loss", Series: []Series{{Label: "a", X: []float64{1}, Y: []float64{math.NaN()}}}}}), `series "a"`},
		{"name", Curves("x.pdf", []Panel{{Series: []Series{{X: []float64{1}, Y: []float64{1}}}}}), "x.pdf: the name must end in .png"},
		{"bins", Reliability(path, nil), "no bins"},
		{"classes", Confusion(path, []string{"a"}, nil), "1 classes and 0 rows"},
		{"ragged", Confusion(path, []string{"a", "b"}, [][]int{{1, 2}, {3}}), "row 1 has 1 counts for 2 classes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			expect.True(t, test.err != nil && strings.Contains(test.err.Error(), test.want), "error %v lacks %q", test.err, test.want)
		})
	}
}

func TestPanelsSkipMissingFigures(t *testing.T) {
	titles := func(panels []Panel) (out []string) {
		for _, p := range panels {
			out = append(out, fmt.Sprintf("%s:%d", p.Title, len(p.Series)))
		}
		return out
	}
	row := func(pairs ...any) Row {
		r := Row{"step": 1.0}
		for i := 0; i < len(pairs); i += 2 {
			r[pairs[i].(string)] = pairs[i+1]
		}
		return r
	}
	for _, test := range []struct {
		name, stage string
		rows        []Row
		want        []string
	}{
		{"supervised", Supervised, []Row{row("loss", 2.0, "learning_rate", math.NaN()), row("loss", nil), row("epoch", 1.0, "eval_accuracy", 0.5)},
			[]string{"Held-out accuracy:1", "Training loss:1"}},
		{"a policy as it was given", Reinforced, []Row{{"step": 0, "eval_accuracy": 0.5}}, []string{"Held-out accuracy:1"}},
		{"reinforce on answers", Reinforced, []Row{
			{"step": 0, "eval_accuracy": 0.5, "eval_format_rate": 1.0, "eval_accuracy/two": 0.4, "eval_accuracy/three": 0.6},
			row("reward", 0.5, "accuracy", 0.5, "loss", 0.1, "policy_loss", 0.1, "entropy", 1.0, "eval_accuracy", 0.6),
		}, []string{"Held-out accuracy:3", "Held-out accuracy by kind:2", "Reward:1", "Sampled accuracy:1", "Policy loss:1", "Entropy:1"}},
		{"replay", Reinforced, []Row{row("reward", 0.5, "loss", 0.3, "policy_loss", 0.1, "buffer/size", 64.0, "buffer/staleness", 1.5)},
			[]string{"Reward:1", "Replay buffer size:1", "Age of replayed samples:1", "Policy loss:1", "Total loss:1"}},
		{"many kinds", Reinforced, []Row{row("eval_accuracy/a", 0.9, "eval_accuracy/b", 0.8, "eval_accuracy/c", 0.1, "eval_accuracy/d", 0.2, "eval_accuracy/e", 0.3,
			"eval_accuracy/f", 0.4, "eval_accuracy/g", 0.5, "eval_accuracy/h", 0.6, "eval_accuracy/i", 0.7)}, []string{"Held-out accuracy, 7 weakest kinds:7"}},
		{"preferences", Reinforced, []Row{row("rewards/margins", 0.5, "rewards/accuracies", 0.6, "eval_loss", 0.7, "eval_rewards/margins", 0.4, "eval_rewards/accuracies", 0.5)},
			[]string{"Held-out loss:1", "Reward margin:2", "Preference accuracy:2"}},
		{"a list of rewards", Reinforced, []Row{row("rewards/accuracy/mean", 0.5, "rewards/f1/mean", 0.3, "rewards/f1/std", 0.1)},
			[]string{"Reward components:2"}},
	} {
		expect.Equal(t, test.want, titles(Panels(test.stage, test.rows)), test.name)
	}
}

// TestManyClassesFitAPage plots as many classes as Banking77 has.
func TestManyClassesFitAPage(t *testing.T) {
	const n = 77
	names, counts := make([]string, n), make([][]int, n)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range n {
		names[i], counts[i] = fmt.Sprintf("card_payment_wrong_exchange_rate_%d", i), make([]int, n)
		counts[i][i] = 34
		for range 6 {
			counts[i][rng.IntN(n)]++
		}
	}
	path := filepath.Join(t.TempDir(), "confusion_77.png")
	must.Do(t, Confusion(path, names, counts))
	file := must.Open(os.Open(path))(t)
	size := must.Get(png.DecodeConfig(file))(t)
	expect.True(t, size.Width <= 1600 && size.Height <= 1600, "a picture of %d × %d pixels", size.Width, size.Height)
}

// TestReliabilityShowsBothBars has a bin with accuracy above confidence: both bars must be visible.
func TestReliabilityShowsBothBars(t *testing.T) {
	path := filepath.Join(t.TempDir(), "underconfident.png")
	must.Do(t, Reliability(path, []Bin{{Low: 0, High: 1, Confidence: 0.2, Accuracy: 0.9, Count: 10}}))
	file := must.Open(os.Open(path))(t)
	img := must.Get(png.Decode(file))(t)
	blue := blend(palette[0], 0.6)
	seen, bounds := 0, img.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y/2; y++ {
		if r, g, b, _ := img.At(bounds.Dx()*2/3, y).RGBA(); uint8(r>>8) == blue.R && uint8(g>>8) == blue.G && uint8(b>>8) == blue.B {
			seen++
		}
	}
	expect.True(t, seen >= 200, "%d pixels of the accuracy bar are in view", seen) // of about 450 rows that the bar has in the upper half
}

func TestBins(t *testing.T) {
	third := float32(5) / 15 // the upper edge of bin 4, which it belongs to
	var got []Bin
	for i, b := range Bins([]rl.Sureness{{P: 0, Right: true}, {P: third}, {P: 0.9375, Right: true}, {P: 1, Right: true}, {P: 1}}) {
		if b.Count > 0 {
			b.Low, b.High = float64(i), 0
			got = append(got, b)
		}
	}
	want := []Bin{
		{Low: 0, Confidence: 0, Accuracy: 1, Count: 1},
		{Low: 4, Confidence: float64(third), Accuracy: 0, Count: 1},
		{Low: 14, Confidence: 2.9375 / 3, Accuracy: 2.0 / 3, Count: 3},
	}
	expect.Equal(t, want, got)
}

func TestRunningMean(t *testing.T) {
	expect.Equal(t, []float64{1, 1.5, 2, 3, 4}, runningMean([]float64{1, 2, 3, 4, 5}, 3))
}

func TestTicks(t *testing.T) {
	tests := []struct {
		low, high float64
		want      string
	}{
		{0, 1, "0 0.2 0.4 0.6 0.8 1.0"},
		{1, 3, "1.0 1.5 2.0 2.5 3.0"},
		{0, 1234, "0 200 400 600 800 1,000 1,200"},
		{-0.03, 0.01, "-0.03 -0.02 -0.01 0 0.01"},
		{0, 3e-5, "0 5e-6 1e-5 1.5e-5 2e-5 2.5e-5 3e-5"},
		{0.3, 0.1 + 0.2 + 1e-17, "0.3"},
		{9.7e-5, 1.03e-4, "9.7e-5 9.8e-5 9.9e-5 1e-4 1.01e-4 1.02e-4 1.03e-4"},
		{0, 3e8, "0 5e7 1e8 1.5e8 2e8 2.5e8 3e8"},
	}
	for _, test := range tests {
		var labels []string
		for _, tick := range (ticks{most: 7}).Ticks(test.low, test.high) {
			labels = append(labels, tick.Label)
		}
		expect.Same(t, test.want, strings.Join(labels, " "), "ticks of %g to %g", test.low, test.high)
	}
	got := (ticks{most: 7, whole: true}).Ticks(1, 3)
	expect.True(t, len(got) == 3 && got[1].Label == "2", "integer ticks of 1 to 3: %v", got)
}
