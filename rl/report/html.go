package report

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rltrain/internal/outfile"
	"rltrain/rl"
)

// page is what report.html shows.
type page struct {
	Title    string
	Facts    []Setting
	Inexact  []string
	Scores   Table
	Classes  Table
	Pictures []picture
	Last     Table
	Config   string
}

type picture struct {
	Name string
	Data template.URL
}

// About is what run.json says of a run.
type About struct {
	Title   string
	Facts   []Setting
	Inexact []string // why a resumed run may differ from one that never stopped
}

// WriteHTML writes dir/report.html, one page that needs no other file, about
// the run in dir: its About, logs/eval_results.json, the curves of
// logs/metrics.jsonl (drawn anew into plots/), the other pictures of plots/,
// and config.yaml. What is not there yet is left out. It returns the path of
// the page.
func WriteHTML(dir string, about About) (string, error) {
	p := page{Title: about.Title, Facts: about.Facts, Inexact: about.Inexact}
	for _, read := range []func(string, *page) error{readCurves, readScores, readPictures, readConfig} {
		if err := read(dir, &p); err != nil {
			return "", fmt.Errorf("report of %s: %w", dir, err)
		}
	}
	var b strings.Builder
	// Parsed here: a program that only prints its help must not pay for it.
	if err := template.Must(template.New("page").Parse(pageText)).Execute(&b, p); err != nil {
		return "", fmt.Errorf("report of %s: %w", dir, err)
	}
	path := filepath.Join(dir, "report.html")
	return path, outfile.Write(path, []byte(b.String()), 0o644)
}

func readCurves(dir string, p *page) error {
	rows, err := ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	last := map[string]string{}
	for _, row := range rows {
		for key, value := range row {
			if f, ok := number(value); ok {
				last[key] = fmt.Sprintf("%.6g", f)
			}
		}
	}
	p.Last.Headers = []string{"metric", "last value"}
	for key, value := range last {
		p.Last.Rows = append(p.Last.Rows, []string{key, value})
	}
	slices.SortFunc(p.Last.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })

	panels := PanelsOf(rows)
	if len(panels) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	return Curves(filepath.Join(dir, "plots", "curves.png"), panels)
}

func readScores(dir string, p *page) error {
	path := filepath.Join(dir, "logs", "eval_results.json")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var e rl.Evaluation
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	p.Scores = scoreTable(e)
	p.Classes.Headers = []string{"class", "precision", "recall", "F1", "rows"}
	for _, c := range e.Classes {
		p.Classes.Rows = append(p.Classes.Rows, []string{
			c.Label, fmt.Sprintf("%.4f", c.Precision), fmt.Sprintf("%.4f", c.Recall), fmt.Sprintf("%.4f", c.F1), Count(int64(c.Support)),
		})
	}
	return nil
}

func scoreTable(e rl.Evaluation) Table {
	t := Table{Headers: []string{fmt.Sprintf("on %s rows", Count(int64(e.N))), "value", "95 % interval"}}
	add := func(name string, value float64, in rl.Interval) {
		t.Rows = append(t.Rows, []string{name, fmt.Sprintf("%.4f", value), fmt.Sprintf("%.4f to %.4f", in[0], in[1])})
	}
	add("accuracy", e.Accuracy, e.Intervals.Accuracy)
	add("macro F1", e.F1Macro, e.Intervals.F1Macro)
	add("weighted F1", e.F1Weighted, e.Intervals.F1Weighted)
	add("ECE", e.ECE, e.Intervals.ECE)
	add("Brier", e.Brier, e.Intervals.Brier)
	if e.LatencyP50 != nil && e.LatencyP95 != nil {
		t.Rows = append(t.Rows, []string{"latency, median", fmt.Sprintf("%.2f ms", *e.LatencyP50), ""},
			[]string{"latency, 95th percentile", fmt.Sprintf("%.2f ms", *e.LatencyP95), ""})
	}
	return t
}

func readPictures(dir string, p *page) error {
	paths, err := filepath.Glob(filepath.Join(globQuote(dir), "plots", "*.png"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		p.Pictures = append(p.Pictures, picture{
			Name: strings.TrimSuffix(filepath.Base(path), ".png"),
			Data: template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(data)),
		})
	}
	return nil
}

// globQuote keeps the characters of a folder's name from being a pattern.
func globQuote(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func readConfig(dir string, p *page) error {
	data, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p.Config = string(data)
	return err
}

const pageText = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #eee; vertical-align: top; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; }
th { white-space: nowrap; }
img { max-width: 100%; display: block; margin: 1rem 0; }
pre { background: #f6f6f6; padding: 1rem; overflow: auto; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<table>{{range .Facts}}
<tr><th>{{.Name}}</th><td>{{.Value}}</td></tr>{{end}}
</table>
{{with .Inexact}}<p>A resumed run may differ from one that never stopped:</p>
<ul>{{range .}}
<li>{{.}}</li>{{end}}
</ul>
{{end}}{{define "table"}}<table>
<tr>{{range .Headers}}<th>{{.}}</th>{{end}}</tr>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</table>
{{end}}{{if .Scores.Rows}}<h2>Evaluation</h2>
{{template "table" .Scores}}{{template "table" .Classes}}{{end}}{{range .Pictures}}<h2>{{.Name}}</h2>
<img alt="{{.Name}}" src="{{.Data}}">
{{end}}{{if .Last.Rows}}<h2>Metrics</h2>
{{template "table" .Last}}{{end}}{{with .Config}}<h2>Configuration</h2>
<pre>{{.}}</pre>
{{end}}</body>
</html>
`
