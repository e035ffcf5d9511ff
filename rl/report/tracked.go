package report

import "strings"

// Tracked returns the numbers of a row under the names that transformers sends to trackers: eval_x becomes eval/x, other
// names x become train/x, and the step becomes train/global_step.
func Tracked(row Row) map[string]float64 {
	numbers := map[string]float64{}
	for name, value := range row {
		v, ok := number(value)
		if !ok {
			if n, unsigned := value.(uint64); unsigned {
				v, ok = float64(n), true
			}
		}
		switch held, isHeld := strings.CutPrefix(name, "eval_"); {
		case !ok:
		case name == "step":
			numbers["train/global_step"] = v
		case isHeld:
			numbers["eval/"+held] = v
		default:
			numbers["train/"+name] = v
		}
	}
	return numbers
}
