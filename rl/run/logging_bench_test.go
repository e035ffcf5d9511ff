package run

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// spentCPU is the process's processor time.
func spentCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLogging measures the cost of a step's row, line, two kept completions and TensorBoard record, also in
// processor time.
func BenchmarkLogging(b *testing.B) {
	s := must.Get(OpenStage(StageConfig{
		Dir: b.TempDir() + "/run", Info: testInfo(), LogEvery: 1, Prompts: 2, Trackers: []string{TensorBoard},
		Console: report.NewConsole(io.Discard, io.Discard, time.Now), Now: time.Now,
	}))(b)
	h := s.Hooks("train", "step")
	row := report.Row{"step": 1}
	for i := range 40 {
		row["figure/"+string(rune('a'+i%26))+string(rune('a'+i/26))] = 1 / float64(i+3)
	}
	answer := rl.Record{Shown: "17, 25, 3", Written: "1 7 + 2 5 = 4 2; 4 2 + 3 = 4 5"}
	step := &rl.Step{Records: func(int) ([]rl.Record, error) { return []rl.Record{answer, answer}, nil }}
	before := spentCPU(b)
	for i := 0; b.Loop(); i++ {
		row["step"] = i
		must.Do(b, h.Write(row))
		must.Do(b, h.StepLine("step 1/10 loss 0.25 reward 0.5", row))
		must.Do(b, h.Record(step))
		h.Advance(i, i+2, "")
	}
	b.ReportMetric(float64((spentCPU(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	must.Do(b, s.Close(StatusFinished, ""))
}
