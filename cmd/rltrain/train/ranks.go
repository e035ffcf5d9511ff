package train

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/scratch"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// ranks trains as one of several processes, where a launcher has started them, and else alone.
func (t *trainer) ranks(ctx context.Context, environ []string) error {
	place, err := dist.FromEnvironment(environ)
	if err != nil {
		return err
	}
	if place == nil {
		return t.alone(ctx)
	}
	c := t.config
	if c.General.DryRun {
		return c.Errorf("dry_run", "a trial is for one process, and this one is %v: unset RANK and WORLD_SIZE", place)
	}
	if device := c.General.Device; strings.HasPrefix(device, "cuda") {
		return c.Errorf("device", "%s applies to one process alone, and this one is %v: several train on the CPU", device, place)
	}
	err = t.runRank(ctx, place)
	if err != nil && place.Rank > 0 {
		err = fmt.Errorf("rank %d: %w", place.Rank, err)
	}
	return err
}

// refusalLimit is how long a process that cannot take part waits for the others, to tell them.
const refusalLimit = 15 * time.Second

// Refuse tells the other ranks of a run, if there are any, why this process cannot take part, so that they do not wait for it.
func Refuse(ctx context.Context, environ []string, why string) {
	place, err := dist.FromEnvironment(environ)
	if err != nil || place == nil || torch.Open(1) != nil {
		return
	}
	group, err := dist.Join(ctx, *place, dist.Member{Fault: why}, refusalLimit)
	if err == nil {
		group.Close() // all had a fault
	}
}

// alone trains, or tries to, in this process.
func (t *trainer) alone(ctx context.Context) error {
	device, err := torch.ParseDevice(t.config.General.Device)
	if err != nil {
		return t.config.Errorf("device", "%v", err)
	}
	torch.UseDevice(device)
	if err := shared.Ready(ctx); err != nil {
		return err
	}
	if t.config.General.DryRun {
		return t.dryRun(ctx)
	}
	return t.run(ctx)
}

func (t *trainer) runRank(ctx context.Context, place *dist.Place) (err error) {
	c := t.config
	if c.General.Threads == 0 {
		c.General.Threads = max(1, runtime.NumCPU()/place.Local())
	}
	if err := shared.Ready(ctx); err != nil {
		return err
	}
	if err := torch.Open(c.General.Threads); err != nil {
		return err
	}
	// Nothing that takes long comes before the ranks meet: until then nobody notices that one dies.
	timeout := time.Duration(c.General.DistTimeout * float64(time.Second))
	if t.group, err = dist.Join(ctx, *place, t.member(), timeout); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer func() {
		close(ended)
		if err != nil {
			t.group.Fail(err)
		}
		t.group.Close()
	}()
	inputs, err := t.inputs()
	if err := t.sameOnAllRanks(inputs, err); err != nil {
		return err
	}
	if err := t.chooseStamp(); err != nil {
		return err
	}
	if place.Rank > 0 {
		done, err := t.aside()
		if err != nil {
			return err
		}
		defer done()
	}
	go t.leaveWith(ended, timeout/5)
	if err := t.mirror(); err != nil {
		return err
	}
	return t.run(ctx)
}

// leaveWith ends the process where a rank has ended the group, and what this one computes does not end by itself.
func (t *trainer) leaveWith(ended <-chan struct{}, grace time.Duration) {
	select {
	case <-ended:
		return
	case <-t.group.Broken():
	}
	select {
	case <-ended:
	case <-time.After(grace):
		if t.group.Rank() > 0 {
			os.RemoveAll(t.config.General.OutputDir) // its own, see aside
		}
		why := t.group.Cause().Error()
		fmt.Fprintln(os.Stderr, "rltrain: "+shared.OneLine(why))
		_ = shared.TellLauncher(os.Environ(), why) // what there is to say has been said
		os.Exit(1)
	}
}

// member is what has to be the same for all ranks.
func (t *trainer) member() dist.Member {
	m := dist.Member{Version: shared.Version + ", libtorch " + torch.LibtorchVersion, Settings: t.config.Decisive()}
	if resume, _ := t.config.Resuming(); resume {
		m.Settings["resume"] = "true"
	}
	return m
}

// aside makes the run of a rank above 0 write into a folder of its own, which is removed at its end, and say nothing: the
// run's folder is rank 0's.
func (t *trainer) aside() (done func(), err error) {
	c := t.config
	folder, done, err := scratch.New("", "rltrain-rank-")
	if err != nil {
		return nil, err
	}
	if resume, from := c.Resuming(); resume && from != "" {
		c.General.ResumeFrom = t.moved(from, folder)
	}
	c.General.OutputDir = folder
	c.Saving.ReportTo, c.Saving.Completions = nil, 0
	if c.Replay != nil {
		c.Replay.CacheBuffer = false
	}
	t.console = report.NewConsole(io.Discard, io.Discard, time.Now)
	return done, nil
}

// moved is where a checkpoint of the run, .../STAGE/checkpoints/checkpoint-N, lies in another output folder.
func (t *trainer) moved(checkpoint, output string) string {
	stage := filepath.Dir(filepath.Dir(checkpoint))
	return filepath.Join(output, filepath.Base(stage), "checkpoints", filepath.Base(checkpoint))
}

// piece is a part of a file that rank 0 gives to the others.
type piece struct {
	Name string // relative to the output folder; "" = that was all
	At   int64
	Data []byte
}

// pieceSize bounds the memory that giving files takes.
const pieceSize = 8 << 20

// mirror gives the others what rank 0 resumes from: all of the run's folders but older checkpoints.
func (t *trainer) mirror() error {
	resume, _ := t.config.Resuming()
	if !resume {
		return nil
	}
	if t.group.Rank() > 0 {
		return t.take()
	}
	for _, stage := range []string{supervisedStage, rlStage, rewardStage} {
		if err := t.give(t.stageDir(stage)); err != nil {
			return err
		}
	}
	_, err := dist.First(t.group, piece{})
	return err
}

func (t *trainer) give(dir string) error {
	checkpoint, _, _, err := run.LatestCheckpoint(dir)
	if err != nil {
		return err
	}
	if _, from := t.config.Resuming(); from != "" {
		checkpoint = from
	}
	checkpoints := filepath.Join(dir, "checkpoints")
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case e.IsDir() && filepath.Dir(path) == checkpoints && filepath.Base(path) != filepath.Base(checkpoint):
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		return t.giveFile(path)
	})
}

func (t *trainer) giveFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	name, err := filepath.Rel(t.config.General.OutputDir, path)
	if err != nil {
		return err
	}
	for at := int64(0); ; {
		data := make([]byte, pieceSize)
		n, err := io.ReadFull(file, data)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		if n == 0 && at > 0 {
			return nil
		}
		if _, err := dist.First(t.group, piece{Name: name, At: at, Data: data[:n]}); err != nil {
			return err
		}
		if at += int64(n); n < pieceSize {
			return nil
		}
	}
}

// take writes what rank 0 gives.
func (t *trainer) take() error {
	for {
		p, err := dist.First(t.group, piece{})
		if err != nil || p.Name == "" {
			return err
		}
		if !filepath.IsLocal(p.Name) {
			return fmt.Errorf("rank 0 gives a file %q, which is none of the output folder", p.Name)
		}
		path := filepath.Join(t.config.General.OutputDir, p.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(p.Data, p.At)
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
}
