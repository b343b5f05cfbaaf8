// Report a camera that is refused: Gradio shows nothing. The component's value is a status line.
const cameras = navigator.mediaDevices, open = cameras?.getUserMedia.bind(cameras);
if (cameras) cameras.getUserMedia = async wanted => {
  try { return await open(wanted); }
  catch (error) {
    const why = error.name === 'NotFoundError'
      ? 'No camera was found: drop or choose an image.'
      : 'The camera cannot be used: allow it in the browser, or drop or choose an image.';
    props.value = `<div data-kept><p class="trouble">${why}</p></div>`;
    return new Promise(() => {});  // stays pending until another click
  }
};
