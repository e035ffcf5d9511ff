package reward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// functions are definitions of rewards by name.
func functions(byName map[string]envs.Reward) (all []Definition) {
	for name, score := range byName {
		all = append(all, Function(name, "for the test", score))
	}
	return all
}

func parseText(t testing.TB, spec string, own map[string]envs.Reward, o Options) *Text {
	t.Helper()
	return must.Open(ParseText(spec, functions(own), o))(t)
}

// completions of one turn each.
func completions(texts ...string) []envs.Completion {
	var list []envs.Completion
	for _, text := range texts {
		list = append(list, envs.Completion{Text: text, Action: envs.Action{Text: text}})
	}
	return list
}

func lengthReward(_ context.Context, c envs.Completion) (float64, error) {
	return float64(len(c.Text)), nil
}

func TestTextScore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		defer close(stuck)
		moody := func(_ context.Context, c envs.Completion) (float64, error) {
			switch c.Text {
			case "hang":
				<-stuck // ignores its context
			case "error":
				return 0, errors.New("no")
			case "panic":
				panic("at once")
			case "nan":
				return math.NaN(), nil
			}
			return 1, nil
		}
		r := parseText(t, "length=0.5,mood=2,expr:'words == 1'=-1", map[string]envs.Reward{"length": lengthReward, "mood": moody}, Options{Timeout: time.Hour})
		got := must.Get(r.Score(t.Context(), completions("a", "hang", "error", "panic", "nan", "a b"), 3))(t)
		want := Scores{
			Total: []float64{1.5, nan, nan, nan, nan, 3.5},
			Rewards: []Score{
				// mean 21/6 = 3.5; squares 6.25+.25+2.25+2.25+.25+.25 = 11.5
				{Name: "length", Weight: 0.5, Values: []float64{1, 4, 5, 5, 3, 3}, N: 6, Mean: 3.5, Std: math.Sqrt(11.5 / 5)},
				{Name: "mood", Weight: 2, Values: []float64{1, nan, nan, nan, nan, 1}, N: 2, Mean: 1, Failures: 4, Failure: "reward mood: timeout after 1h0m0s"},
				{Name: "expr:words == 1", Weight: -1, Values: []float64{1, 1, 1, 1, 1, 0}, N: 6, Mean: 5. / 6, Std: math.Sqrt((5./36 + 25./36) / 5)},
			},
		}
		expect.Equal(t, want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12))
		expect.NoError(t, got.AllFailed(), "AllFailed")
	})
}

func TestTextScoreStopsWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := parseText(t, "wait,expr:length", map[string]envs.Reward{"wait": func(ctx context.Context, _ envs.Completion) (float64, error) {
		cancel()
		<-ctx.Done()
		return 0, ctx.Err()
	}}, Options{})
	_, err := r.Score(ctx, make([]envs.Completion, 3), 1)
	expect.True(t, errors.Is(err, context.Canceled), "error %v", err)
}

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, most := make(chan struct{}, 100), 0
		r := parseText(t, "busy", map[string]envs.Reward{"busy": func(context.Context, envs.Completion) (float64, error) {
			running <- struct{}{}
			time.Sleep(time.Second) // of the bubble
			most = max(most, len(running))
			<-running
			return 0, nil
		}}, Options{})
		_, err := r.Score(t.Context(), make([]envs.Completion, 10), 1)
		expect.True(t, err == nil && most == 1, "%d at a time, error %v; want 1", most, err)
	})
}

func TestAllFailed(t *testing.T) {
	r := parseText(t, "expr:1/0,length=0.1", map[string]envs.Reward{"length": lengthReward}, Options{})
	scores := must.Get(r.Score(t.Context(), completions("a", "b"), 1))(t)
	want := "rewards failed for all 2 samples: reward expr:1/0: the value is +Inf"
	err := scores.AllFailed()
	expect.True(t, err != nil && err.Error() == want, "error %v, want %s", err, want)
	scores, err = r.Score(t.Context(), nil, 1)
	expect.True(t, err == nil && scores.AllFailed() == nil, "no samples: %v, %v", err, scores.AllFailed())
	mixed := parseText(t, "expr:1/correct", nil, Options{})
	scores, err = mixed.Score(t.Context(), []envs.Completion{{Info: &envs.Info{}}, {Info: &envs.Info{Correct: true}}}, 1)
	expect.True(t, err == nil && scores.AllFailed() == nil, "one of two: %v, %v", err, scores.AllFailed())
}

// Weights and values are bounded so that no sum leaves float32.
func TestTotalsFitFloat32(t *testing.T) {
	huge := func(value float64) envs.Reward {
		return func(context.Context, envs.Completion) (float64, error) { return value, nil }
	}
	for value, ok := range map[float64]bool{1e32: true, 1.6e32: true, 1e33: false, 1e39: false, math.Inf(1): false} {
		r := parseText(t, "a=1e6,b=1e6", map[string]envs.Reward{"a": huge(value), "b": huge(value)}, Options{})
		scores := must.Get(r.Score(t.Context(), completions("x"), 1))(t)
		if total := scores.Total[0]; ok && !finite(float64(float32(total))) || !ok && (!math.IsNaN(total) || scores.Rewards[1].Failures != 1) {
			t.Errorf("twice 1e6·%g: total %g, %+v", value, total, scores.Rewards[1])
		}
	}
}

// TestLargestReward is allowed; the next float64 is not.
func TestLargestReward(t *testing.T) {
	most := float64(math.MaxFloat32)
	expect.True(t, fits(most, 1, 1) && !fits(math.Nextafter(most, math.Inf(1)), 1, 1), "the bound is not MaxFloat32")
}

func TestParseTextErrors(t *testing.T) {
	own := map[string]envs.Reward{"answer": lengthReward, "format": lengthReward}
	for _, test := range []struct{ spec, want string }{
		{"", "has an empty item; choose from accuracy, answer, cmd:'PROGRAM ARGS', expr:'EXPR', format, model:DIR"},
		{"answr", `unknown reward "answr"; did you mean "answer"?`},
		{"vowels.py", `unknown reward "vowels.py"; to run a program write cmd:'python3 vowels.py'; choose`},
		{"./judge", `unknown reward "./judge"; to run a program write cmd:'./judge'; choose`},
		{"answer,python3 my.py=0.5", `to run a program write cmd:'python3 my.py'; choose`},
		{"answer,cmd:./no-such-judge", "no such file"},
		{"expr:'length >'", `reward "expr:length >": column 8: unexpected token EOF`},
	} {
		expect.Failure(ParseText(test.spec, functions(own), Options{}))(t, test.want)
	}
	for _, name := range []string{"", "expr", "cmd", "model", "rubric", "a,b", "a=b", "cmd:x", "a b"} {
		expect.Fails(ParseText("expr:1", functions(map[string]envs.Reward{name: lengthReward}), Options{}))(t, "a reward of a task may be called %q", name)
	}
}

func ExampleParseText() {
	// The task's reward, and a penalty for long answers.
	own := Function("answer", "1 for the right answer", func(_ context.Context, c envs.Completion) (float64, error) {
		if c.Info != nil && c.Info.Correct {
			return 1, nil
		}
		return 0, nil
	})
	rewards, err := ParseText("answer,expr:'length > 10 ? -1 : 0'=0.5", []Definition{own}, Options{})
	if err != nil {
		panic(err)
	}
	defer rewards.Close()
	scores, err := rewards.Score(context.Background(), []envs.Completion{
		{Action: envs.Action{Text: "42"}, Info: &envs.Info{Correct: true}},
		{Action: envs.Action{Text: "It may well be 42."}, Info: &envs.Info{Correct: true}},
		{Action: envs.Action{Text: "41"}, Info: &envs.Info{}},
	}, 1)
	if err != nil {
		panic(err)
	}
	fmt.Println(scores.Total)
	for _, r := range scores.Rewards {
		fmt.Printf("%s: mean %.2f, %d failures\n", r.Name, r.Mean, r.Failures)
	}
	// Output:
	// [1 0.5 0]
	// answer: mean 0.67, 0 failures
	// expr:length > 10 ? -1 : 0: mean -0.33, 0 failures
}
