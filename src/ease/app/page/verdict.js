// An answer in words whose boldness follows its confidence.

import { model } from "./server.js";
import { classes, percent } from "./words.js";

const SURE = 0.9;
const LIKELY = 0.6;

/** `kind` is the boldness, `names` the classes that the headline names, `spoken` is for screen readers. */
export function verdict(prediction, calibrated) {
  const [best, second] = prediction.classes;
  const known = classes(model.now.classes.length);
  const say = (kind, head, line, names = [best.name]) => ({ kind, head, line, names, spoken: `${head}. ${line}` });
  if (prediction.corrected) return say("told", best.name, "A person said so about this very photo.");
  if (prediction.is_unknown) {
    return say("stranger", "Nothing I know", `It looks like none of the ${known}; the closest is ${best.name}.`, []);
  }
  if (!calibrated) {
    return say("maybe", `Most like ${best.name}`, "With so few photos I cannot tell how sure I am, nor whether it is something new.");
  }
  if (best.confidence >= SURE) return say("sure", best.name, `I am sure: ${percent(best.confidence)}.`);
  if (best.confidence >= LIKELY || !second) return say("likely", `Probably ${best.name}`, `${percent(best.confidence)} sure.`);
  const both = percent(best.confidence + second.confidence);
  return say("maybe", `Maybe ${best.name} or ${second.name}`, `I am not sure; one of the two with ${both}.`, [best.name, second.name]);
}
