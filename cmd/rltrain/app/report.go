package app

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// comparisonFile is the default --output for several runs.
const comparisonFile = "comparison.html"

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write an HTML report about a run, or compare several runs",
		ArgsUsage: "DIR...",
		Description: `Writes one self-contained page. For several runs, the page overlays their curves and lists the settings that differ.
With --watch, rltrain serves the page on this machine and updates it during training.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "file to write", DefaultText: "DIR/report.html; for several runs " + comparisonFile},
			&cli.BoolFlag{Name: "watch", Usage: "serve a live page on 127.0.0.1 instead of writing a file"},
			&cli.IntFlag{Name: "port", Usage: "port for --watch; 0 = any free port"},
		},
		Action: reportRuns,
	}
}

func reportRuns(c *cli.Context) error {
	dirs := c.Args().Slice()
	switch {
	case c.IsSet("port") && !c.Bool("watch"):
		return shared.UsageErrorf("--port: needs --watch")
	case c.IsSet("output") && c.Bool("watch"):
		return shared.UsageErrorf("--output: conflicts with --watch, which writes no file")
	case c.Int("port") < 0 || c.Int("port") > 65535:
		return shared.UsageErrorf("--port: %d is out of range; it must be 0 to 65535", c.Int("port"))
	}
	if _, err := pageOf(dirs, true); err != nil { // check all folders first
		for _, dir := range dirs {
			if _, unread := run.ReadRun(dir); unread != nil {
				return fmt.Errorf("%w%s", err, suggestStage(dir))
			}
		}
		return err
	}
	if c.Bool("watch") {
		return watch(c, dirs)
	}
	path := c.String("output")
	switch {
	case path == "" && len(dirs) == 1:
		record, err := run.ReadRun(dirs[0])
		if err != nil {
			return err
		}
		if path, err = report.WriteHTML(dirs[0], record.About()); err != nil {
			return err
		}
	default:
		if path == "" {
			path = comparisonFile
		}
		page, err := pageOf(dirs, false)
		if err == nil {
			err = outfile.Write(path, page, 0o644)
		}
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(c.App.Writer, path)
	return err
}

// pageOf returns the page about the runs in dirs.
func pageOf(dirs []string, watched bool) ([]byte, error) {
	var runs []report.Compared
	for _, dir := range dirs {
		record, err := run.ReadRun(dir)
		if err != nil {
			return nil, err
		}
		runs = append(runs, report.Compared{Dir: dir, Name: filepath.Base(filepath.Clean(dir)), About: record.About()})
	}
	if len(runs) == 1 {
		return report.HTML(dirs[0], runs[0].About, watched)
	}
	uniqueNames(runs)
	return report.CompareHTML(runs, watched)
}

// uniqueNames adds the parent folder to equal names of runs, then numbers.
func uniqueNames(runs []report.Compared) {
	count := func() map[string]int {
		n := map[string]int{}
		for _, r := range runs {
			n[r.Name]++
		}
		return n
	}
	n := count()
	for i := range runs {
		if r := &runs[i]; n[r.Name] > 1 {
			if abs, err := filepath.Abs(r.Dir); err == nil {
				r.Name = filepath.Join(filepath.Base(filepath.Dir(abs)), r.Name)
			}
		}
	}
	n = count()
	for i := range runs {
		if r := &runs[i]; n[r.Name] > 1 {
			r.Name += " (" + strconv.Itoa(i+1) + ")"
		}
	}
}

// watch serves the page until the command is stopped.
func watch(c *cli.Context, dirs []string) error {
	listener, err := (&net.ListenConfig{}).Listen(c.Context, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Int("port"))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	server := &http.Server{Handler: watched(dirs, listener.Addr().String()), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(c.Context, func() { _ = server.Close() })
	defer stop()
	if _, err := fmt.Fprintf(c.App.Writer, "Serving http://%s/ (Ctrl-C to stop)\n", listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// watched serves the page, and at /stamp a value that changes with it. It checks the Host header, so that other web sites
// cannot read the page through DNS rebinding.
func watched(dirs []string, address string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		page, err := pageOf(dirs, true)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(page) // the browser may be gone
	})
	mux.HandleFunc("GET /stamp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		_, _ = fmt.Fprintln(w, stamp(dirs))
	})
	_, port, _ := net.SplitHostPort(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != address && r.Host != net.JoinHostPort("localhost", port) {
			http.Error(w, "only available on this machine", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// stamp hashes the sizes and times of the files of a page.
func stamp(dirs []string) string {
	h := fnv.New64a()
	for _, dir := range dirs {
		for _, name := range []string{"run.json", "config.yaml", "logs/metrics.jsonl", "logs/completions.jsonl", "logs/training_log.txt", "logs/eval_results.json"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				fmt.Fprintln(h, name, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
