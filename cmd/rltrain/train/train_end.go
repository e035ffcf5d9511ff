package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch"
)

// measure runs the policy on the test rows.
func measure(ctx context.Context, policy *algo.LabelPolicy, test algo.Examples, name, dir string) (stageResult, error) {
	probs, err := policy.Probs(ctx, test.IDs)
	if err != nil {
		return stageResult{}, err
	}
	return stageResult{name: name, dir: dir, truth: test.Labels, probs: probs, evaluation: rl.Evaluate(policy.Labels, test.Labels, probs)}, nil
}

// finished measures a stage that an earlier process ended.
func (t *trainer) finished(ctx context.Context, stage string, p parts) (stageResult, error) {
	dir := t.stageDir(stage)
	if err := t.console.Print("The " + stage + " stage in " + dir + " is finished; it is used as it is"); err != nil {
		return stageResult{}, err
	}
	policy, err := algo.LoadLabelPolicy(ctx, t.hub, dir)
	if err != nil {
		return stageResult{}, err
	}
	defer policy.Close()
	return measure(ctx, policy, p.test, stage, dir)
}

// end saves the trained policy, measures it on the test rows, draws its curves and closes the stage.
func (t *trainer) end(ctx context.Context, stage *algo.Stage, policy *algo.LabelPolicy, p parts, name string) (stageResult, error) {
	result, err := t.write(ctx, stage, policy, p, name)
	if err != nil {
		return result, stage.Settle(err)
	}
	return result, stage.Close(rl.StatusFinished, "trained to the end")
}

func (t *trainer) write(ctx context.Context, stage *algo.Stage, policy *algo.LabelPolicy, p parts, name string) (stageResult, error) {
	dir := stage.Dir()
	if err := policy.Save(dir); err != nil {
		return stageResult{}, err
	}
	result, err := measure(ctx, policy, p.test, name, dir)
	if err != nil {
		return result, err
	}
	latency, err := measureLatency(ctx, policy, p.test.IDs)
	if err != nil {
		return result, err
	}
	result.evaluation.SetLatency(latency)
	if err := saveScores(stage, evalResults{Model: dir, Dataset: t.data.name, Split: "test", Cut: p.test.Cut, Evaluation: result.evaluation}); err != nil {
		return result, err
	}
	if err := drawCurves(stage); err != nil {
		return result, err
	}
	_, err = report.WriteCard(dir, t.card(policy, result))
	return result, err
}

// drawCurves draws the metrics of a stage, where it has any: a policy that is right often enough from the start
// is not warmed up.
func drawCurves(stage *algo.Stage) error {
	rows, err := report.ReadMetrics(filepath.Join(stage.Dir(), "logs", "metrics.jsonl"))
	if err != nil || len(rows) == 0 {
		return err
	}
	plot, err := stage.File("plots", "curves.png")
	if err != nil {
		return err
	}
	return report.Curves(plot, report.PanelsOf(rows))
}

func (t *trainer) card(policy *algo.LabelPolicy, r stageResult) report.Card {
	e := r.evaluation
	card := report.Card{
		Name: filepath.Base(r.dir), Stage: r.name, BaseModel: policy.BaseModel, Pooling: policy.Pooling,
		MaxLength: policy.MaxLength, Labels: policy.Labels,
		Data: fmt.Sprintf("%s: %d training, %d validation and %d test rows", t.data.name, len(t.data.train), len(t.data.val), len(t.data.test)),
		Results: report.Table{
			Headers: []string{"n", "accuracy", "F1 macro", "F1 weighted", "ECE", "Brier"},
			Rows: [][]string{{strconv.Itoa(e.N), fmt.Sprintf("%.4f", e.Accuracy), fmt.Sprintf("%.4f", e.F1Macro),
				fmt.Sprintf("%.4f", e.F1Weighted), fmt.Sprintf("%.4f", e.ECE), fmt.Sprintf("%.4f", e.Brier)}},
		},
		Versions: []report.Setting{{Name: "rltrain", Value: version}, {Name: "libtorch", Value: torch.LibtorchVersion}, {Name: "Go", Value: runtime.Version()}},
	}
	for line := range strings.Lines(string(t.config.YAML())) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(key, "#") {
			value, _, _ = strings.Cut(value, "  # ") // where a value came from
			card.Settings = append(card.Settings, report.Setting{Name: key, Value: value})
		}
	}
	return card
}

// latencyTexts are measured one at a time, after a few that warm caches.
const (
	latencyTexts  = 200
	latencyWarmup = 5
)

// measureLatency is the time of predictions of one text each, in milliseconds.
func measureLatency(ctx context.Context, policy *algo.LabelPolicy, ids [][]int32) ([]float64, error) {
	var ms []float64
	for i := range min(len(ids), latencyTexts) + latencyWarmup {
		began := time.Now()
		if _, err := policy.Probs(ctx, ids[i%len(ids):][:1]); err != nil {
			return nil, err
		}
		if i >= latencyWarmup {
			ms = append(ms, float64(time.Since(began).Microseconds())/1000)
		}
	}
	return ms, nil
}
