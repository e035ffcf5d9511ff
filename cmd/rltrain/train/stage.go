package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// stage runs a stage, unless an earlier process has finished it; then finished is true.
func (t *trainer) stage(name string, train func(stage *run.Stage) error) (finished bool, err error) {
	c := t.config
	dir := t.stageDir(name)
	device, err := torch.DeviceInUse()
	if err != nil {
		return false, err
	}
	resume, from := c.Resuming()
	dtype, err := t.chosenDType()
	if err != nil {
		return false, err
	}
	kernels, err := torch.CPUKernels()
	if err != nil {
		return false, err
	}
	inputs, err := t.inputs()
	if err := t.sameOnAllRanks(inputs, err); err != nil { // by now the commits of the Hub are known too
		return false, err
	}
	var changed []string
	if resume {
		var inexact []string
		if changed, inexact, err = t.same(name, inputs); err != nil {
			return false, err
		}
		t.inexact = append(t.inexact, inexact...)
	}
	if !files.Same(filepath.Dir(filepath.Dir(from)), dir) {
		from = ""
	}
	saveEvery := c.Saving.SaveSteps
	if c.Task.Stamped && name == rlStage && c.Source("save_steps") == (config.Source{}) && c.EvalEvery() > 0 {
		saveEvery = c.EvalEvery()
	}
	stage, err := run.OpenStage(run.StageConfig{
		Group: t.group,
		Dir:   dir, Resume: resume, From: from, Changed: changed, Inexact: t.inexact, SaveEvery: saveEvery, Keep: c.Saving.Keep, KeepRuns: c.Saving.KeepRuns,
		LogEvery: c.Saving.LoggingSteps, Prompts: c.Saving.Completions, Trackers: c.Saving.ReportTo, Settings: c.Effective(), Console: t.console, Now: time.Now, Times: c.Saving.Times, Deadline: t.limit,
		Info: run.Info{Task: c.Task.Name, Stage: name, Command: t.command, Versions: versions(), Device: device, DType: dtype,
			Threads: torch.Threads(), CPU: cpuModel(), Kernels: kernels, Seed: c.General.Seed, Started: time.Now(), TemplateDate: t.templateDate(), Config: string(c.YAML()), Inputs: inputs, Environment: wandbVariables(os.Environ(), c.Saving)},
	})
	if errors.Is(err, run.ErrFinished) {
		called := map[string]string{supervisedStage: "supervised", rlStage: "RL", rewardStage: "reward model"}[name]
		return true, t.console.Print("The " + called + " stage in " + dir + " has finished; using it")
	}
	if err != nil {
		return false, err
	}
	return false, stage.Finish(func() error {
		if err := outfile.Write(filepath.Join(stage.Dir(), "config.yaml"), c.YAML(), 0o644); err != nil {
			return err
		}
		return train(stage)
	})
}

// chosenDType is the type of frozen weights where the device chooses it, else "".
func (t *trainer) chosenDType() (string, error) {
	c := t.config
	if c.Tokens != nil && (c.Tokens.WeightType() != "" || c.FullTuning()) || c.Rewarding != nil && c.Rewarding.WeightType() != "" || c.Labels != nil && c.Labels.DType != "auto" {
		return "", nil
	}
	bf16, err := torch.PrefersBF16()
	if err != nil || !bf16 {
		return "", err
	}
	return "bf16", nil
}

// same refuses to resume a stage whose settings or inputs are others than it began with. Settings that say how long it goes on
// may differ, and inputs that the user allows; both are returned in words.
func (t *trainer) same(stage string, inputs run.Inputs) (changed, inexact []string, err error) {
	dir := t.stageDir(stage)
	record, err := run.ReadRun(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // nothing to resume yet
	}
	if err != nil {
		return nil, nil, err
	}
	if changed, err = t.sameConfig(stage, record.Config); err != nil {
		return nil, nil, err
	}
	inexact, err = t.sameInputs(dir, record.Inputs, inputs)
	return changed, inexact, err
}

// sameConfig compares the settings that a stage began with, text, with today's.
func (t *trainer) sameConfig(stage, text string) (changed []string, err error) {
	dir := t.stageDir(stage)
	path := filepath.Join(dir, "run.json")
	if text == "" { // of an earlier version
		path = filepath.Join(dir, "config.yaml")
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("resuming %s: its settings are unknown: %w; restore the file, or start over without --resume", dir, err)
		}
		text = string(data)
	}
	old, err := config.Stored(path, []byte(text))
	if err != nil {
		return nil, fmt.Errorf("resuming %s: its settings are of another version: %w", dir, err)
	}
	for _, d := range config.Diff(old, t.config) {
		if !d.Extends {
			return nil, t.config.Errorf(d.Key, "the run in %s began with %v, not %v; resume it with that, or start over without --resume", dir, d.A, d.B)
		}
		if t.config.StageOf(d.Key) != stage {
			continue
		}
		if next := t.stageDir(rlStage); stage == supervisedStage && t.config.RL != nil && files.Exist(next) {
			return nil, t.config.Errorf(d.Key, "the run in %s began with %v, not %v, and the RL stage in %s has started from its result: move that away, or start over without --resume", dir, d.A, d.B, next)
		}
		_, done, _, err := run.LatestCheckpoint(dir)
		if n, isCount := t.config.Count(d.Key); err == nil && isCount && d.Key != "epochs" && n > 0 && n < done {
			return nil, t.config.Errorf(d.Key, "the run in %s is at %s, past %d; raise it to continue", dir, report.Plural(done, "step"), n)
		}
		changed = append(changed, fmt.Sprintf("%s was %s, is now %s", d.Key, d.A, d.B))
	}
	return changed, nil
}

// somethingToResume refuses to resume a run that is not there.
func (t *trainer) somethingToResume() error {
	c := t.config
	if !c.General.Resume || c.General.ResumeFrom != "" || slices.ContainsFunc([]string{supervisedStage, rlStage, rewardStage}, t.begun) {
		return nil
	}
	return c.Errorf("resume", "no run of these settings is in %s; start one without --resume, or pass --resume auto to resume or start", c.General.OutputDir)
}

// resumable refuses a checkpoint to resume from that is of no stage of this run, or of one that another has begun from.
func (t *trainer) resumable() error {
	resume, from := t.config.Resuming()
	if !resume || from == "" {
		return nil
	}
	var stages []string
	for _, stage := range []string{supervisedStage, rlStage} {
		if stage == supervisedStage && t.config.Supervised == nil || stage == rlStage && t.config.RL == nil {
			continue
		}
		stages = append(stages, t.stageDir(stage))
		if !files.Same(filepath.Dir(filepath.Dir(from)), t.stageDir(stage)) {
			continue
		}
		if next := t.stageDir(rlStage); stage == supervisedStage && t.config.RL != nil && files.Exist(next) {
			return t.config.Errorf("resume_from_checkpoint", "%s: the RL stage in %s has started from the result of this stage: move that away first", from, next)
		}
		if !files.Exist(from) {
			return t.config.Errorf("resume_from_checkpoint", "%s: no such folder", from)
		}
		return nil
	}
	return t.config.Errorf("resume_from_checkpoint", "%s is not a checkpoint of this run; one would be %s", from, filepath.Join(stages[len(stages)-1], "checkpoints", "checkpoint-50"))
}

// sameKernels has the rest of a resumed run computed by the kernels that computed its beginning: which are fastest is
// measured, and where that was not kept, two measurements may disagree.
func (t *trainer) sameKernels() error {
	if resume, _ := t.config.Resuming(); !resume {
		return nil
	}
	for _, stage := range []string{rlStage, supervisedStage, rewardStage} {
		if record, err := run.ReadRun(t.stageDir(stage)); err == nil && record.Kernels.Set != "" {
			return torch.UseKernels(record.Kernels.Set)
		}
	}
	return nil
}

// begun reports whether a stage has a run folder.
func (t *trainer) begun(stage string) bool {
	return files.Exist(t.stageDir(stage), "run.json")
}

// save writes JSON to logs/.
func save(stage *run.Stage, name string, what any) error {
	path, err := stage.File("logs", name)
	if err != nil {
		return err
	}
	return files.SaveJSON(path, what)
}

// drawCurves draws the metrics of a stage, where it has any: a policy that is right often enough from the start
// is not warmed up.
func drawCurves(stage *run.Stage) error {
	rows, err := report.ReadMetrics(filepath.Join(stage.Dir(), "logs", "metrics.jsonl"))
	panels := report.Charts(report.Panels(stage.Name(), rows))
	if err != nil || len(panels) == 0 {
		return err
	}
	plot, err := stage.File("plots", "curves.png")
	if err != nil {
		return err
	}
	torch.ReleaseMemory() // pictures are made in other memory
	return report.Curves(plot, panels)
}

func versions() map[string]string {
	return map[string]string{"rltrain": shared.Version, "go": runtime.Version(), "libtorch": torch.LibtorchVersion}
}

// wandbVariables are the settings of Weights & Biases that a run was started with, without what is secret: options
// stand before variables.
func wandbVariables(environ []string, options config.Saving) map[string]string {
	kept := map[string]string{}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "WANDB_") && name != "WANDB_API_KEY" {
			kept[name] = value
		}
	}
	for name, value := range map[string]string{"WANDB_PROJECT": options.Project, "WANDB_ENTITY": options.Entity, "WANDB_NAME": options.RunName} {
		if value != "" {
			kept[name] = value
		}
	}
	return kept
}

// cpuModel is the processor's name and the vector extension in use.
func cpuModel() string {
	name := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	capability, err := torch.CPUCapability()
	if err != nil {
		return name
	}
	return name + ", " + capability
}

// drawTraining draws rewards, the loss, and the accuracy on held-out rows beside that of the most frequent label.
func drawTraining(stage *run.Stage, majority float64) error {
	rows, err := report.ReadMetrics(filepath.Join(stage.Dir(), "logs", "metrics.jsonl"))
	if err != nil {
		return err
	}
	return report.Curves(filepath.Join(stage.Dir(), "training_curves.png"), report.ClassificationPanels(rows, majority))
}

// drawAnswers draws the training of a policy that generates labels.
func (t *trainer) drawAnswers(stage *run.Stage, task envs.Task) error {
	counts, most, n := map[string]int{}, 0, min(task.Len(envs.Eval), t.config.Answers.EvalSamples)
	for i := range n {
		episode, err := task.Episode(envs.Eval, i)
		if err != nil {
			return err
		}
		if worked, ok := episode.(envs.Demonstrator); ok {
			counts[worked.Solution()]++
			most = max(most, counts[worked.Solution()])
		}
	}
	return drawTraining(stage, float64(most)/float64(max(1, n)))
}
