"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const map = document.getElementById("map"), card = document.getElementById("card");
const choice = document.getElementById("class"), group = document.getElementById("marks");
const marks = [...group.children];
function light(label) {
  group.classList.toggle("lit", label >= 0);
  marks.forEach((mark, i) => mark.classList.toggle("on", data.labels[i] === label));
}
function chosen() {
  light(choice.value === "" ? -1 : Number(choice.value));
}
const walk = walkOn(map, group, i => {
  card.replaceChildren();
  if (i < 0) {
    card.textContent = "Nothing is pointed at.";
    chosen();
    return;
  }
  light(data.labels[i]);
  if (data.pictures[i]) {
    const picture = document.createElement("img");
    picture.src = data.pictures[i];
    picture.alt = "";
    card.append(picture);
  }
  const words = document.createElement("div"), label = document.createElement("strong");
  label.textContent = data.classes[data.labels[i]];
  words.append(label);
  const file = document.createElement("small");
  file.textContent = data.synthetic[i] ? "synthetic point" : data.names[i];
  words.append(file);
  card.append(words);
});
choice.addEventListener("change", () => { walk.select(-1); chosen(); });
