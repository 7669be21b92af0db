// The camera: several photos of one class, then of the next. Without one, the file dialog of the phone takes its place.

import { nameField } from "./combobox.js";
import { preview } from "./pictures.js";
import { model } from "./server.js";
import { count, el, find, setText } from "./words.js";

const SIDE = 1280; // pixels of the longer side of a photo
let stream = null;
let facing = "environment"; // the camera at the back of a phone
let shots = [];
let box = null;
let hand = () => {};

/** Whether the browser can show the camera here: only on https and on this machine itself. */
const possible = () => Boolean(navigator.mediaDevices?.getUserMedia);

/** Take photos; `give(name, files)` is called for every class. Returns false if there is no camera to be used. */
export async function takePhotos(give) {
  if (!possible()) return false;
  hand = give;
  setText("camera-error");
  clear();
  try {
    await start();
  } catch {
    return false; // refused, or there is none
  }
  const cameras = (await navigator.mediaDevices.enumerateDevices()).filter(({ kind }) => kind === "videoinput");
  find("camera-turn").hidden = cameras.length < 2;
  find("camera").showModal();
  box.field.focus();
  return true;
}

async function start() {
  stop();
  stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: facing, width: { ideal: SIDE } } });
  find("camera-video").srcObject = stream;
}

function stop() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  find("camera-video").srcObject = null;
}

async function shoot() {
  const video = find("camera-video");
  if (!video.videoWidth) return;
  const canvas = el("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const content = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const file = new File([content], `camera-${Date.now()}-${shots.length + 1}.jpg`, { type: "image/jpeg" });
  shots.push(file);
  const thumb = el("canvas", { width: 112, height: 112 });
  find("camera-shots").prepend(thumb);
  preview(file, thumb);
  setText("camera-count", words());
}

const words = () => (shots.length ? `${count(shots.length, "photo")} of ${box.field.value.trim() || "this class"}` : "Turn it a little between the photos: ten are a good start.");

function clear() {
  shots = [];
  box.field.value = "";
  find("camera-shots").replaceChildren();
  setText("camera-count", words());
}

function handOver() {
  if (shots.length) hand(box.field.value, shots);
  clear();
}

export function setUp() {
  box = nameField({ label: "What do you show?", names: () => [...model.names.keys()], pick: () => find("camera-shoot").focus(), placeholder: "Name" });
  find("camera-name").append(box.element);
  find("camera-shoot").onclick = shoot;
  find("camera-next").onclick = () => {
    handOver();
    box.field.focus();
  };
  find("camera-done").onclick = () => find("camera").close();
  find("camera-turn").onclick = () => {
    facing = facing === "user" ? "environment" : "user";
    start().catch((error) => setText("camera-error", error.message));
  };
  find("camera").onclose = () => {
    stop();
    handOver();
  };
}
